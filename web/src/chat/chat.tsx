// The view of one session: what was said, and where to say more.

import { App, Button, Empty, Spin } from "antd";
import { useEffect, useMemo, useState } from "react";
import { go, newChat } from "../shell/route";
import { isOpen } from "../state/talk";
import { isOwn, wordsOf } from "../state/turns";
import { useAtlas, useHouse, useTalk } from "../state/use";
import type { FilePart, ImagePart, MessageShape } from "../wire";
import { Composer } from "./composer";
import { ChatHead } from "./head";
import { type Acts, Messages } from "./messages";
import { WelcomeView } from "./welcome";

export default function Chat({ id }: { id: string }) {
  const atlas = useAtlas();
  const talk = useTalk();
  const { link } = useHouse();
  const [chosen, setChosen] = useState("");
  useEffect(() => {
    atlas.open(id);
    setChosen("");
  }, [atlas, id]);
  const acts = useActs(id);
  const running = Object.values(talk.runs).some(isOpen);
  const agentId = chosen || talk.session?.agentId || "";
  useEffect(() => {
    const stop = (event: KeyboardEvent) => {
      if (
        event.key === "Escape" &&
        !event.defaultPrevented &&
        running &&
        !document.querySelector(".ant-modal, .ant-drawer-open, .editing, dialog[open]")
      )
        atlas.stop();
    };
    window.addEventListener("keydown", stop);
    return () => window.removeEventListener("keydown", stop);
  }, [atlas, running]);
  if (talk.key !== id) return null;
  const empty = talk.messages.length === 0 && talk.outgoing.length === 0 && !running;
  if (talk.missing) return <Gone />;
  return (
    <div className="chat">
      <ChatHead talk={talk} />
      {empty ? (
        talk.loaded || link !== "connecting" ? (
          <WelcomeView agentId={agentId} />
        ) : (
          <Spin className="middle" />
        )
      ) : (
        <Messages key={`said ${id}`} talk={talk} acts={acts} />
      )}
      <Composer key={`write ${id}`} sessionKey={id} running={running} agentId={agentId} onAgent={setChosen} />
    </div>
  );
}

/** What can be done with a message. The session stays as it is: another begins with the same words. */
function useActs(id: string): Acts {
  const atlas = useAtlas();
  const { message } = App.useApp();
  return useMemo((): Acts => {
    const fork = async (
      messageId: string | undefined,
      say?: { text: string; with?: Attached[]; agentId?: string; model?: string },
    ) => {
      try {
        const key = messageId
          ? (await atlas.ask("sessions.fork", { sessionKey: id, messageId })).sessionKey
          : newChat().id;
        go({ view: "chat", id: key });
        if (say) {
          atlas.open(key);
          atlas.say(say.text, say.with, say);
        } else message.success("A new session begins here; the other one stays as it is.");
      } catch (error) {
        message.error((error as Error).message);
      }
    };
    const before = (messageId: string): string | undefined => {
      const { messages } = atlas.talk.current;
      return messages[messages.findIndex((each) => each.id === messageId) - 1]?.id;
    };
    return {
      fork: (messageId) => void fork(messageId),
      edit: (item, text) => void fork(before(item.message.id), { text, with: attachedTo(item.message) }),
      retry: (item, by) => {
        const { messages } = atlas.talk.current;
        const first = item.messages[0];
        const end = first ? messages.indexOf(first) : messages.findIndex((each) => each.runId === item.runId) + 1;
        const asked = messages.slice(0, end).findLast((each) => each.role === "user" && !isOwn(each));
        if (asked) void fork(before(asked.id), { text: wordsOf([asked]), with: attachedTo(asked), ...by });
      },
    };
  }, [atlas, id, message]);
}

type Attached = ImagePart | FilePart;

function attachedTo(message: MessageShape): Attached[] {
  return message.parts.filter((part) => part.type === "image" || part.type === "file");
}

function Gone() {
  return (
    <div className="middle">
      <Empty image={Empty.PRESENTED_IMAGE_SIMPLE} description="This session was removed.">
        <Button type="primary" onClick={() => go(newChat(), true)}>
          New chat
        </Button>
      </Empty>
    </div>
  );
}
