// All that was said, drawn only where somebody looks. It follows what grows, unless one has scrolled away.

import { ArrowDownOutlined } from "@ant-design/icons";
import { Button, Spin } from "antd";
import { memo, useEffect, useMemo, useRef, useState } from "react";
import { Virtuoso, type VirtuosoHandle } from "react-virtuoso";
import type { Talk } from "../state/talk";
import { type Item, isSame, itemsOf } from "../state/turns";
import { useAtlas, useHouse } from "../state/use";
import { Answer, type AnswerActs } from "./answer";
import { LeavingItem, type SaidActs, SaidItem } from "./said";

const START = 1_000_000;

export type Acts = AnswerActs & SaidActs;

export function Messages({ talk, acts }: { talk: Talk; acts: Acts }) {
  const atlas = useAtlas();
  const list = useRef<VirtuosoHandle>(null);
  const [away, setAway] = useState(false);
  const items = useMemo(() => itemsOf(talk), [talk]);
  const first = useFirst(items);
  useEffect(() => list.current?.autoscrollToBottom(), [items]);
  const leaving = talk.outgoing.at(-1)?.key;
  useEffect(() => {
    if (leaving) list.current?.scrollToIndex({ index: "LAST", align: "end" }); // whoever says something wants to see it
  }, [leaving]);
  return (
    <div className="messages">
      <Virtuoso
        ref={list}
        className="scroller"
        data={items}
        firstItemIndex={first}
        initialTopMostItemIndex={{ index: "LAST", align: "end" }}
        computeItemKey={(_, item) => item.id}
        increaseViewportBy={{ top: 800, bottom: 400 }}
        alignToBottom={false}
        atBottomThreshold={80}
        atBottomStateChange={(bottom) => setAway(!bottom)}
        followOutput={(bottom) => (bottom ? "auto" : false)}
        startReached={() => void atlas.older()}
        itemContent={(_, item) => <Row item={item} acts={acts} />}
        components={talk.older ? WITH_OLDER : WHOLE}
        aria-label="Conversation"
        role="log"
      />
      {away && (
        <Button
          className="to-end"
          shape="round"
          icon={<ArrowDownOutlined aria-hidden />}
          aria-label="To the latest"
          onClick={() => list.current?.scrollToIndex({ index: "LAST", align: "end", behavior: "auto" })}
        >
          Latest
        </Button>
      )}
    </div>
  );
}

const Room = () => <div className="room" />;
const Older = () => (
  <div className="older">
    <Spin size="small" /> older messages
  </div>
);
const WHOLE = { Header: Room, Footer: Room };
const WITH_OLDER = { Header: Older, Footer: Room };

const Row = memo(
  function Row({ item, acts }: { item: Item; acts: Acts }) {
    return (
      <div className="item">
        {item.kind === "said" ? (
          <SaidItem item={item} acts={acts} />
        ) : item.kind === "answered" ? (
          <Answer item={item} acts={acts} />
        ) : (
          <Leaving item={item} />
        )}
      </div>
    );
  },
  (before, after) => isSame(before.item, after.item) && before.acts === after.acts,
);

function Leaving({ item }: { item: Extract<Item, { kind: "leaving" }> }) {
  const atlas = useAtlas();
  const { link } = useHouse();
  return (
    <LeavingItem
      outgoing={item.outgoing}
      offline={link !== "online"}
      again={() => atlas.again(item.outgoing)}
      drop={() => atlas.drop(item.outgoing)}
    />
  );
}

/** The number of the first item, smaller by as many as were put before it: so the view stays where it was. */
function useFirst(items: Item[]): number {
  const known = useRef<{ number: number; id: string | undefined }>({ number: START, id: undefined });
  return useMemo(() => {
    const place = known.current.id === undefined ? -1 : items.findIndex((item) => item.id === known.current.id);
    const number = place > 0 ? known.current.number - place : known.current.number;
    known.current = { number, id: items[0]?.id };
    return number;
  }, [items]);
}
