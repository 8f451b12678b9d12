// Virtualized list of the conversation. Follows new output unless the user has scrolled up.

import { ArrowDownOutlined } from "@ant-design/icons";
import { Button, Spin } from "antd";
import { memo, useEffect, useMemo, useRef, useState } from "react";
import { Virtuoso, type VirtuosoHandle } from "react-virtuoso";
import { type ConversationItem, conversationItems, isSameItem, type UserItem } from "../state/conversation";
import { useAppState, useClient } from "../state/hooks";
import type { PendingMessage as Message, SessionState } from "../state/session";
import { Answer, type AnswerActions } from "./answer";
import { JobMessage } from "./speaker";
import { Summary } from "./summary";
import { PendingMessage, UserMessage, type UserMessageActions } from "./user-message";

export type MessageActions = AnswerActions & UserMessageActions;

const FIRST_INDEX = 1_000_000;
const LAST = { index: "LAST", align: "end" } as const;

export function MessageList({ state, actions }: { state: SessionState; actions: MessageActions }) {
  const client = useClient();
  const list = useRef<VirtuosoHandle>(null);
  const [scrolledUp, setScrolledUp] = useState(false);
  const items = useMemo(() => conversationItems(state), [state]);
  const firstIndex = useFirstIndex(items);
  // biome-ignore lint/correctness/useExhaustiveDependencies: every change of the items may add output to follow
  useEffect(() => list.current?.autoscrollToBottom(), [items]);
  const lastPending = state.pending.at(-1)?.key;
  useEffect(() => {
    if (lastPending) list.current?.scrollToIndex(LAST); // show the message that was just sent
  }, [lastPending]);
  return (
    <div className="messages">
      <Virtuoso
        ref={list}
        className="scroller"
        data={items}
        firstItemIndex={firstIndex}
        initialTopMostItemIndex={LAST}
        computeItemKey={(_, item) => item.id}
        increaseViewportBy={{ top: 800, bottom: 400 }}
        alignToBottom={false}
        atBottomThreshold={80}
        atBottomStateChange={(atBottom) => setScrolledUp(!atBottom)}
        followOutput={(atBottom) => (atBottom ? "auto" : false)}
        startReached={() => void client.loadOlderMessages()}
        itemContent={(_, item) => <Row item={item} actions={actions} />}
        components={state.hasOlder ? WITH_OLDER : COMPLETE}
        aria-label="Conversation"
        role="log"
        aria-live="off"
      />
      {scrolledUp && (
        <Button
          className="scroll-to-latest"
          shape="round"
          icon={<ArrowDownOutlined aria-hidden />}
          aria-label="Scroll to latest"
          onClick={() => list.current?.scrollToIndex({ ...LAST, behavior: "auto" })}
        >
          Latest
        </Button>
      )}
    </div>
  );
}

const Padding = () => <div className="list-padding" />;
const LoadingOlder = () => (
  <div className="loading-older">
    <Spin size="small" /> Loading older messages…
  </div>
);
const COMPLETE = { Header: Padding, Footer: Padding };
const WITH_OLDER = { Header: LoadingOlder, Footer: Padding };

const Row = memo(
  function Row({ item, actions }: { item: ConversationItem; actions: MessageActions }) {
    return (
      <div className="item">
        {item.kind === "user" ? (
          <UserRow item={item} actions={actions} />
        ) : item.kind === "answer" ? (
          <Answer item={item} actions={actions} />
        ) : item.kind === "summary" ? (
          <Summary message={item.message} />
        ) : (
          <PendingRow message={item.message} />
        )}
      </div>
    );
  },
  (previous, next) => isSameItem(previous.item, next.item) && previous.actions === next.actions,
);

function UserRow({ item, actions }: { item: UserItem; actions: MessageActions }) {
  const { origin } = item.message;
  return origin && origin.kind !== "channel" ? (
    <JobMessage message={item.message} origin={origin} />
  ) : (
    <UserMessage item={item} actions={actions} />
  );
}

function PendingRow({ message }: { message: Message }) {
  const client = useClient();
  const { status } = useAppState();
  return (
    <PendingMessage
      message={message}
      offline={status !== "online"}
      onRetry={() => client.resendMessage(message)}
      onCancel={() => client.cancelMessage(message)}
    />
  );
}

/** Return the list index of the first item. Prepended items decrease it, so that the scroll position is kept. */
function useFirstIndex(items: ConversationItem[]): number {
  const previous = useRef<{ index: number; id: string | undefined }>({ index: FIRST_INDEX, id: undefined });
  return useMemo(() => {
    const { index, id } = previous.current;
    const prepended = id === undefined ? -1 : items.findIndex((item) => item.id === id);
    const next = prepended > 0 ? index - prepended : index;
    previous.current = { index: next, id: items[0]?.id };
    return next;
  }, [items]);
}
