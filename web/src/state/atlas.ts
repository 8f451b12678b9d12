// The page's model: who is there, which sessions there are, what waits for an answer, and the session that is open.

import { Connection, type EventFrame, type Link, Offline } from "../net/connection";
import type {
  AgentShape,
  ApprovalShape,
  AuditShape,
  FilePart,
  ImagePart,
  JobShape,
  Methods,
  ModelShape,
  Principal,
  ServerShape,
  SessionShape,
  Welcome,
} from "../wire";
import { keepOutgoing, keptOutgoing } from "./drafts";
import { newId } from "./ids";
import type { Decision, Part } from "./kinds";
import { Store } from "./store";
import type { Outgoing, Talk } from "./talk";
import * as talks from "./talk";

export interface House {
  link: Link;
  everOnline: boolean;
  restarting: boolean;
  server?: ServerShape;
  principal?: Principal;
  maxFrame: number;
  sessions: SessionShape[];
  sessionsLoaded: boolean;
  moreSessions?: string;
  approvals: ApprovalShape[];
  agents: AgentShape[];
  models: ModelShape[];
}

const NOBODY: House = {
  link: "connecting",
  everOnline: false,
  restarting: false,
  maxFrame: 1 << 20,
  sessions: [],
  sessionsLoaded: false,
  approvals: [],
  agents: [],
  models: [],
};

export class Atlas {
  readonly house = new Store<House>(NOBODY, 0);
  readonly talk = new Store<Talk>(talks.emptyTalk(""));
  readonly audit = new Set<(entry: AuditShape) => void>();
  readonly jobs = new Set<(job: JobShape) => void>();
  private connection: Connection;
  private looking: ReturnType<typeof setTimeout> | undefined;
  private reading = false;

  constructor(token: string) {
    this.connection = new Connection(token, {
      link: (link) => this.linked(link),
      welcome: (welcome) => this.welcomed(welcome),
      event: (frame) => this.heard(frame),
    });
  }

  start = (): void => this.connection.start();
  hurry = (): void => this.connection.hurry();
  end = (): void => this.connection.end();

  ask<M extends keyof Methods>(method: M, params: Methods[M]["params"]): Promise<Methods[M]["result"]> {
    return this.connection.request(method, params);
  }

  /** Show a session, or a place where one may begin. */
  open(key: string): void {
    if (this.talk.current.key === key) return;
    const left = this.talk.current.key;
    if (left) this.ask("sessions.unsubscribe", { sessionKey: left }).catch(ignored);
    this.talk.set({ ...talks.emptyTalk(key), outgoing: keptOutgoing()[key] ?? [] });
    this.talk.flush();
    void this.follow();
  }

  /** Say something in the open session. It is shown at once, and sent until the gateway has it. */
  say(
    text: string,
    attachments: (ImagePart | FilePart)[] = [],
    { agentId, model }: { agentId?: string; model?: string } = {},
  ): void {
    const parts: Part[] = [...(text ? [{ type: "text", text } as const] : []), ...attachments];
    const outgoing: Outgoing = {
      key: newId(),
      parts,
      at: Date.now(),
      state: "sending",
      ...(agentId ? { agentId } : {}),
      ...(model ? { model } : {}),
    };
    this.change(talks.said(this.talk.current, outgoing));
    this.talk.flush();
    void this.send(this.talk.current.key, outgoing);
  }

  again(outgoing: Outgoing): void {
    const next: Outgoing = { ...outgoing, state: "sending", error: undefined };
    this.change(talks.said(this.talk.current, next));
    void this.send(this.talk.current.key, next);
  }

  drop(outgoing: Outgoing): void {
    if (outgoing.runId) this.ask("chat.abort", { runId: outgoing.runId }).catch(ignored);
    this.change(talks.withdrawn(this.talk.current, outgoing.key));
  }

  stop(): void {
    this.ask("chat.abort", { sessionKey: this.talk.current.key }).catch(ignored);
  }

  async resolve(approvalId: string, decision: Decision, reason = "", args?: Record<string, unknown>): Promise<void> {
    await this.ask("approvals.resolve", { approvalId, decision, reason, ...(args ? { arguments: args } : {}) });
    this.house.change({ approvals: this.house.current.approvals.filter((each) => each.approvalId !== approvalId) });
  }

  /** Older messages of the open session, if there are any. */
  async older(): Promise<void> {
    const { key, messages, older } = this.talk.current;
    const first = messages[0];
    if (!older || !first || this.reading) return;
    this.reading = true;
    try {
      const page = await this.ask("chat.history", {
        sessionKey: key,
        limit: talks.PAGE,
        before: first.seq || first.id,
      });
      if (this.talk.current.key === key) this.change(talks.withOlder(this.talk.current, page));
    } catch (error) {
      if (!(error instanceof Offline)) throw error;
    } finally {
      this.reading = false;
    }
  }

  async moreSessions(): Promise<void> {
    const cursor = this.house.current.moreSessions;
    if (cursor === undefined) return;
    const page = await this.ask("sessions.list", { limit: 60, cursor });
    const known = new Set(this.house.current.sessions.map((each) => each.sessionKey));
    const sessions = [...this.house.current.sessions, ...page.sessions.filter((each) => !known.has(each.sessionKey))];
    this.house.change({ sessions, moreSessions: page.nextCursor ?? undefined });
  }

  private change(talk: Talk): void {
    this.talk.set(talk);
    if (talk.outgoing.length || keptOutgoing()[talk.key]) keepOutgoing(talk.key, talk.outgoing);
  }

  private linked(link: Link): void {
    this.house.change({ link, ...(link === "online" ? { everOnline: true, restarting: false } : {}) });
    if (link === "online") void this.refresh();
  }

  private welcomed(welcome: Welcome): void {
    this.house.change({
      server: welcome.server ?? undefined,
      principal: welcome.principal ?? undefined,
      maxFrame: welcome.policy?.maxFrameBytes ?? this.house.current.maxFrame,
    });
  }

  /** Everything anew, after a connection was made: what changed meanwhile was not heard. */
  private async refresh(): Promise<void> {
    try {
      void this.follow();
      const [sessions, agents, models] = await Promise.all([
        this.ask("sessions.list", { limit: 60 }),
        this.ask("agents.list", {}),
        this.ask("models.list", {}),
      ]);
      this.house.change({
        sessions: sessions.sessions,
        sessionsLoaded: true,
        moreSessions: sessions.nextCursor ?? undefined,
        agents: agents.agents,
        models: models.models,
      });
      await this.lookForApprovals();
      if (this.audit.size) await this.ask("audit.subscribe", {});
      for (const [key, kept] of Object.entries(keptOutgoing())) for (const each of kept) void this.send(key, each);
    } catch (error) {
      if (!(error instanceof Offline)) throw error;
    }
  }

  /** Hear the open session from where this page stands. */
  private async follow(whole = false): Promise<void> {
    const { key, messages } = this.talk.current;
    if (!key || this.house.current.link !== "online") return;
    const last = messages.at(-1)?.id;
    try {
      const answer = await this.ask("sessions.subscribe", {
        sessionKey: key,
        ...(whole ? {} : { runs: talks.positions(this.talk.current), ...(last ? { afterMessageId: last } : {}) }),
      });
      if (this.talk.current.key === key) this.change(talks.subscribed(this.talk.current, answer));
    } catch (error) {
      if (!(error instanceof Offline)) throw error;
    }
  }

  private async send(key: string, outgoing: Outgoing): Promise<void> {
    const { parts, agentId, model } = outgoing;
    const message = parts.filter((part) => part.type === "text" || part.type === "image" || part.type === "file");
    try {
      const sent = await this.ask("chat.send", {
        sessionKey: key,
        message,
        idempotencyKey: outgoing.key,
        whenBusy: "queue",
        ...(agentId ? { agentId } : {}),
        ...(model ? { model } : {}),
      });
      if (this.talk.current.key === key)
        this.change(talks.accepted(this.talk.current, outgoing.key, sent.runId, sent.status === "queued"));
      else
        keepOutgoing(
          key,
          (keptOutgoing()[key] ?? []).filter((each) => each.key !== outgoing.key),
        );
    } catch (error) {
      if (error instanceof Offline) return; // it goes out again with the next connection
      if (this.talk.current.key === key)
        this.change(talks.unsent(this.talk.current, outgoing.key, (error as Error).message));
    }
  }

  private async lookForApprovals(): Promise<void> {
    const { approvals } = await this.ask("approvals.list", {});
    this.house.change({ approvals });
  }

  private heard(frame: EventFrame): void {
    if (talks.isRunFrame(frame)) this.heardRun(frame);
    else if (frame.event === "session.updated") this.heardSession(frame.data.session, frame.data.deleted ?? false);
    else if (frame.event === "approvals.updated") {
      clearTimeout(this.looking);
      this.looking = setTimeout(() => void this.lookForApprovals().catch(ignored), 30);
    } else if (frame.event === "audit.entry") for (const each of this.audit) each(frame.data.entry);
    else if (frame.event === "job.updated") for (const each of this.jobs) each(frame.data.job);
    else if (frame.event === "server.shutdown") this.house.change({ restarting: true });
  }

  private heardRun(frame: Parameters<typeof talks.heard>[1]): void {
    if (frame.data.sessionKey !== this.talk.current.key) return;
    const gap = talks.isGap(this.talk.current, frame);
    this.change(talks.heard(this.talk.current, frame));
    if (gap && this.talk.current.loaded) void this.follow(true);
  }

  private heardSession(session: SessionShape, deleted: boolean): void {
    const others = this.house.current.sessions.filter((each) => each.sessionKey !== session.sessionKey);
    this.house.change({
      sessions: deleted || session.archived ? others : [session, ...others].sort((a, b) => b.updatedAt - a.updatedAt),
    });
    if (session.sessionKey !== this.talk.current.key) return;
    if (deleted) this.change({ ...this.talk.current, missing: true });
    else {
      this.change({ ...this.talk.current, session });
      if (session.running) void this.follow(); // another tab may have queued something
    }
  }
}

function ignored(): void {
  // whoever asked has gone on, or the next connection brings it
}
