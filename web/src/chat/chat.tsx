// Chat view: the conversation of one session and the composer.

import { Spin } from "antd";
import { lazy, Suspense, useCallback, useEffect, useMemo, useState } from "react";
import { type CodeSource, findArtifacts, OpenArtifact } from "../artifacts/artifacts";
import { useFeedback } from "../components/feedback";
import { NotFound } from "../layout/not-found";
import { navigate } from "../layout/router";
import { ModelHint } from "../setup/model-hint";
import { newBranch } from "../state/branches";
import type { SendOptions } from "../state/client";
import { isSynthetic, messageText } from "../state/conversation";
import { useAppState, useClient, useSession } from "../state/hooks";
import { isOpenRun } from "../state/session";
import type { FilePart, ImagePart, MessageShape } from "../wire";
import { Composer } from "./composer";
import { ChatHeader } from "./header";
import { type MessageActions, MessageList } from "./message-list";
import type { ModelChoice } from "./model-picker";
import { Welcome } from "./welcome";

const ArtifactPanel = lazy(() => import("../artifacts/panel"));

export default function Chat({ id, isNew }: { id: string; isNew: boolean }) {
  const client = useClient();
  const session = useSession();
  const { status } = useAppState();
  const [selectedAgent, setSelectedAgent] = useState("");
  const [artifact, setArtifact] = useState<CodeSource>();
  useEffect(() => {
    client.openSession(id);
    setSelectedAgent("");
    setArtifact(undefined);
  }, [client, id]);
  const artifacts = useMemo(() => findArtifacts(session.messages), [session.messages]);
  const [choice, setChoice] = useModelChoice(id);
  const chooseHere = useCallback((model: string, effort: string) => setChoice({ model, effort }), [setChoice]);
  const actions = useMessageActions(id);
  const running = Object.values(session.runs).some(isOpenRun);
  const agentId = selectedAgent || session.session?.agentId || "";
  useStopOnEscape(running);
  if (session.key !== id) return null;
  const empty = session.messages.length === 0 && session.pending.length === 0 && !running;
  const unknown = session.loaded && empty && !isNew && !session.session?.createdAt;
  if (session.deleted || unknown) return <NotFound what="chat" />;
  return (
    <OpenArtifact value={setArtifact}>
      <div className="chat-and-artifact">
        <div className="chat">
          <ChatHeader sessionKey={id} session={session.session} artifacts={artifacts} onArtifact={setArtifact} />
          {!empty ? (
            <MessageList key={`messages ${id}`} state={session} actions={actions} />
          ) : session.loaded || status !== "connecting" ? (
            <Welcome agentId={agentId} />
          ) : (
            <Spin className="centered" />
          )}
          <ModelHint agentId={agentId} chosen={choice.model} onUseHere={chooseHere} />
          <Composer
            key={`composer ${id}`}
            sessionKey={id}
            running={running}
            agentId={agentId}
            onAgentChange={setSelectedAgent}
            choice={choice}
            onChoice={setChoice}
          />
        </div>
        {artifact && (
          <Suspense>
            <ArtifactPanel
              artifacts={artifacts}
              source={artifact}
              onSelect={setArtifact}
              onClose={() => setArtifact(undefined)}
            />
          </Suspense>
        )}
      </div>
    </OpenArtifact>
  );
}

/** The model and effort of a session. A new one stores them once the gateway knows it. */
function useModelChoice(id: string): [ModelChoice, (choice: ModelChoice) => void] {
  const client = useClient();
  const { key, session } = useSession();
  const [chosen, setChosen] = useState<{ id: string; choice: ModelChoice }>();
  const known = key === id && (session?.createdAt ?? 0) > 0;
  const pending = chosen?.id === id ? chosen.choice : undefined;
  useEffect(() => {
    if (!known || !pending) return;
    client
      .request("sessions.update", { sessionKey: id, model: pending.model, effort: pending.effort as "low" })
      .catch(() => undefined);
  }, [client, id, known, pending]);
  const { model = "", effort = "" } = pending ?? (key === id ? session : undefined) ?? {};
  const choice = useMemo(() => ({ model, effort }), [model, effort]);
  const choose = useCallback((next: ModelChoice) => setChosen({ id, choice: next }), [id]);
  return [choice, choose];
}

/** Stop the run when Escape is pressed, unless it closes something else. */
function useStopOnEscape(running: boolean): void {
  const client = useClient();
  useEffect(() => {
    const handleKeyDown = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || event.defaultPrevented || !running) return;
      if (!document.querySelector(".ant-modal, .ant-drawer-open, .editing, dialog[open]")) client.stopRun();
    };
    window.addEventListener("keydown", handleKeyDown);
    return () => window.removeEventListener("keydown", handleKeyDown);
  }, [client, running]);
}

type AttachmentPart = ImagePart | FilePart;

/** Fork, edit and retry. Each continues in a new session, so that the original stays unchanged. */
function useMessageActions(id: string): MessageActions {
  const client = useClient();
  const { message: toast } = useFeedback();
  return useMemo((): MessageActions => {
    const fork = async (messageId: string) => {
      try {
        const params = { sessionKey: id, messageId, metadata: { branch: null } };
        navigate({ view: "chat", id: (await client.request("sessions.fork", params)).sessionKey });
        toast.success("Forked to a new chat. The original is unchanged.");
      } catch (error) {
        toast.error((error as Error).message);
      }
    };
    /** Send a changed version of a user message in a branch that ends before it. */
    const resend = async (original: MessageShape, text: string, options?: SendOptions) => {
      const { messages, session } = client.session.current;
      const previous = messages[messages.findIndex((message) => message.id === original.id) - 1];
      const metadata = { branch: newBranch(session, id, previous?.id ?? "") };
      const choice = { model: session?.model ?? "", effort: session?.effort ?? "" };
      try {
        const { sessionKey } = previous
          ? await client.request("sessions.fork", { sessionKey: id, messageId: previous.id, metadata })
          : await client.request("sessions.create", { agentId: session?.agentId || undefined, metadata });
        navigate({ view: "chat", id: sessionKey });
        client.openSession(sessionKey);
        client.sendMessage(text, attachmentParts(original), { ...choice, ...options });
      } catch (error) {
        toast.error((error as Error).message);
      }
    };
    return {
      fork: (messageId) => void fork(messageId),
      edit: (item, text) => void resend(item.message, text),
      retry: (item, options) => {
        const { messages } = client.session.current;
        const first = item.messages[0];
        const end = first ? messages.indexOf(first) : messages.findIndex(({ runId }) => runId === item.runId) + 1;
        const request = messages.slice(0, end).findLast((message) => message.role === "user" && !isSynthetic(message));
        if (request) void resend(request, messageText([request]), options);
      },
    };
  }, [client, id, toast]);
}

function attachmentParts(message: MessageShape): AttachmentPart[] {
  return message.parts.filter((part) => part.type === "image" || part.type === "file");
}
