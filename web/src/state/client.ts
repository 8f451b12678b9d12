// Client of the gateway: owns the connection, the state of the app and the state of the open session.

import { Connection, type ConnectionStatus, type EventFrame, OfflineError } from "../net/connection";
import type {
  AgentShape,
  AgentTrial,
  ApprovalShape,
  AuditShape,
  FilePart,
  ImagePart,
  JobShape,
  KnowledgeProgress,
  Methods,
  ModelProgress,
  ModelShape,
  Principal,
  ResourceUpdated,
  ServerShape,
  SessionShape,
  WelcomeFrame,
} from "../wire";
import { loadPendingMessages, savePendingMessages } from "./drafts";
import { newId } from "./ids";
import type { ApprovalDecision, MessagePart, PendingMessage, RunFrame, SessionState } from "./session";
import * as sessions from "./session";
import { Store } from "./store";

/** State that does not depend on the open session. */
export interface AppState {
  status: ConnectionStatus;
  wasOnline: boolean;
  restarting: boolean;
  server?: ServerShape;
  principal?: Principal;
  maxFrameBytes: number;
  sessions: SessionShape[];
  sessionsLoaded: boolean;
  nextSessionsCursor?: string;
  approvals: ApprovalShape[];
  /** Sessions with an answer that was finished while they were not open. */
  unread: ReadonlySet<string>;
  agents: AgentShape[];
  models: ModelShape[];
  /** Local models that are downloaded or loaded, by name. */
  modelProgress: Record<string, ModelProgress>;
}

const INITIAL_STATE: AppState = {
  status: "connecting",
  wasOnline: false,
  restarting: false,
  maxFrameBytes: 1 << 20,
  sessions: [],
  sessionsLoaded: false,
  approvals: [],
  unread: new Set(),
  agents: [],
  models: [],
  modelProgress: {},
};

const SESSIONS_PAGE_SIZE = 60;
/** Approval updates come in bursts; one request answers a burst. */
const APPROVALS_DEBOUNCE_MS = 30;

export interface SendOptions {
  agentId?: string;
  model?: string;
  effort?: string;
  /** Enter the running turn, if there is one. */
  steer?: boolean;
}

export class AtlasClient {
  readonly state = new Store<AppState>(INITIAL_STATE, 0);
  readonly session = new Store<SessionState>(sessions.emptySession(""));
  readonly auditListeners = new Set<(entry: AuditShape) => void>();
  readonly jobListeners = new Set<(job: JobShape) => void>();
  readonly resourceListeners = new Set<(resource: ResourceUpdated) => void>();
  readonly progressListeners = new Set<(progress: KnowledgeProgress) => void>();
  readonly trialListeners = new Set<(part: AgentTrial) => void>();
  private connection: Connection;
  private approvalsTimer: ReturnType<typeof setTimeout> | undefined;
  private loadingHistory = false;

  constructor() {
    this.connection = new Connection({
      onStatus: (status) => this.handleStatus(status),
      onWelcome: (welcome) => this.handleWelcome(welcome),
      onEvent: (frame) => this.handleEvent(frame),
    });
  }

  connect = (): void => this.connection.open();
  wake = (): void => this.connection.wake();
  close = (): void => this.connection.close();

  request<M extends keyof Methods>(method: M, params: Methods[M]["params"]): Promise<Methods[M]["result"]> {
    return this.connection.request(method, params);
  }

  /** Open a session. A key that the gateway does not know starts a new one with its first message. */
  openSession(key: string): void {
    const previous = this.session.current.key;
    if (previous === key) return;
    this.markRead(key);
    if (previous) this.request("sessions.unsubscribe", { sessionKey: previous }).catch(ignoreError);
    this.session.set({ ...sessions.emptySession(key), pending: loadPendingMessages()[key] ?? [] });
    this.session.flush();
    void this.subscribe();
  }

  /** Send a message in the open session. It is shown at once, and sent again until the gateway accepts it. */
  sendMessage(text: string, attachments: (ImagePart | FilePart)[] = [], options: SendOptions = {}): void {
    const { agentId, model, effort, steer } = options;
    const parts: MessagePart[] = [...(text ? [{ type: "text", text } as const] : []), ...attachments];
    const message: PendingMessage = {
      key: newId(),
      parts,
      at: Date.now(),
      state: "sending",
      ...(agentId ? { agentId } : {}),
      ...(model ? { model } : {}),
      ...(effort ? { effort } : {}),
      ...(steer ? { steer } : {}),
    };
    this.setSession(sessions.addPending(this.session.current, message));
    this.session.flush();
    void this.submit(this.session.current.key, message);
  }

  resendMessage(message: PendingMessage): void {
    const next: PendingMessage = { ...message, state: "sending", error: undefined };
    this.setSession(sessions.addPending(this.session.current, next));
    void this.submit(this.session.current.key, next);
  }

  cancelMessage(message: PendingMessage): void {
    if (message.runId) this.request("chat.abort", { runId: message.runId }).catch(ignoreError);
    this.setSession(sessions.removePending(this.session.current, message.key));
  }

  stopRun(): void {
    this.request("chat.abort", { sessionKey: this.session.current.key }).catch(ignoreError);
  }

  /** Answer an approval exactly as it was shown. */
  async resolveApproval(
    { approvalId, digest }: ApprovalShape,
    decision: ApprovalDecision,
    reason = "",
    args?: Record<string, unknown>,
  ): Promise<void> {
    await this.request("approvals.resolve", {
      approvalId,
      decision,
      reason,
      ...(args ? { arguments: args } : {}),
      ...(digest ? { digest } : {}),
    });
    const approvals = this.state.current.approvals.filter((approval) => approval.approvalId !== approvalId);
    this.state.update({ approvals });
  }

  /** Allow or deny approvals exactly as they were shown; return what failed, by id. */
  async resolveApprovals(
    shown: readonly ApprovalShape[],
    decision: "allow-once" | "deny",
  ): Promise<Map<string, string>> {
    const approvals = shown.map(({ approvalId, digest = "" }) => ({ approvalId, digest }));
    const { outcomes } = await this.request("approvals.resolveMany", { approvals, decision });
    const done = new Set(outcomes.filter(({ ok }) => ok).map(({ approvalId }) => approvalId));
    this.state.update({ approvals: this.state.current.approvals.filter(({ approvalId }) => !done.has(approvalId)) });
    return new Map(outcomes.filter(({ ok }) => !ok).map(({ approvalId, error = "" }) => [approvalId, error]));
  }

  /** Load older messages of the open session, if there are any. */
  async loadOlderMessages(): Promise<void> {
    const { key, messages, hasOlder } = this.session.current;
    const first = messages[0];
    if (!hasOlder || !first || this.loadingHistory) return;
    this.loadingHistory = true;
    try {
      const before = first.seq || first.id;
      const page = await this.request("chat.history", { sessionKey: key, limit: sessions.PAGE_SIZE, before });
      if (this.session.current.key === key) this.setSession(sessions.prependHistory(this.session.current, page));
    } catch (error) {
      if (!(error instanceof OfflineError)) throw error;
    } finally {
      this.loadingHistory = false;
    }
  }

  async loadMoreSessions(): Promise<void> {
    const cursor = this.state.current.nextSessionsCursor;
    if (cursor === undefined) return;
    const page = await this.request("sessions.list", { limit: SESSIONS_PAGE_SIZE, cursor });
    this.addSessions(page.sessions);
    this.state.update({ nextSessionsCursor: page.nextCursor ?? undefined });
  }

  private addSessions(found: readonly SessionShape[]): void {
    const known = this.state.current.sessions;
    const knownKeys = new Set(known.map((session) => session.sessionKey));
    this.state.update({ sessions: [...known, ...found.filter(({ sessionKey }) => !knownKeys.has(sessionKey))] });
  }

  /** Load the other versions of the open session, unless all sessions are loaded. */
  private async loadBranches(): Promise<void> {
    const { key, session } = this.session.current;
    const { sessionsLoaded, nextSessionsCursor } = this.state.current;
    if (!session?.createdAt || !sessionsLoaded || nextSessionsCursor === undefined) return;
    const { sessions: branches } = await this.request("sessions.branches", { sessionKey: key });
    this.addSessions(branches.filter(({ archived }) => !archived));
  }

  private setSession(state: SessionState): void {
    const { key, pending } = this.session.current;
    this.session.set(state);
    if (state.key !== key || state.pending !== pending) savePendingMessages(state.key, state.pending);
  }

  private handleStatus(status: ConnectionStatus): void {
    this.state.update({ status, ...(status === "online" ? { wasOnline: true, restarting: false } : {}) });
    if (status === "online") void this.refresh();
  }

  private handleWelcome(welcome: WelcomeFrame): void {
    this.state.update({
      server: welcome.server ?? undefined,
      principal: welcome.principal ?? undefined,
      maxFrameBytes: welcome.policy?.maxFrameBytes ?? this.state.current.maxFrameBytes,
    });
  }

  /** Load everything again after connecting: events may have been missed. */
  private async refresh(): Promise<void> {
    try {
      void this.subscribe();
      const [sessionPage, { agents }, { models }] = await Promise.all([
        this.request("sessions.list", { limit: SESSIONS_PAGE_SIZE }),
        this.request("agents.list", {}),
        this.request("models.list", {}),
      ]);
      this.state.update({
        sessions: sessionPage.sessions,
        sessionsLoaded: true,
        nextSessionsCursor: sessionPage.nextCursor ?? undefined,
        agents,
        models,
      });
      this.loadBranches().catch(ignoreError);
      await this.loadApprovals();
      if (this.auditListeners.size) await this.request("audit.subscribe", {});
      for (const [key, messages] of Object.entries(loadPendingMessages()))
        for (const message of messages) void this.submit(key, message);
    } catch (error) {
      if (!(error instanceof OfflineError)) throw error;
    }
  }

  /** Subscribe to the open session, from the last known event on or, with `fromStart`, from the beginning. */
  private async subscribe(fromStart = false): Promise<void> {
    const { key, messages } = this.session.current;
    if (!key || this.state.current.status !== "online") return;
    const lastId = messages.at(-1)?.id;
    const position = {
      runs: sessions.runPositions(this.session.current),
      ...(lastId ? { afterMessageId: lastId } : {}),
    };
    try {
      const response = await this.request("sessions.subscribe", { sessionKey: key, ...(fromStart ? {} : position) });
      if (this.session.current.key !== key) return;
      this.setSession(sessions.applySubscription(this.session.current, response));
      this.loadBranches().catch(ignoreError);
    } catch (error) {
      if (!(error instanceof OfflineError)) throw error;
    }
  }

  private async submit(key: string, pending: PendingMessage): Promise<void> {
    const { parts, agentId, model, effort, steer } = pending;
    const message = parts.filter((part) => part.type === "text" || part.type === "image" || part.type === "file");
    try {
      const accepted = await this.request("chat.send", {
        sessionKey: key,
        message,
        idempotencyKey: pending.key,
        whenBusy: steer ? "steer" : "queue",
        ...(agentId ? { agentId } : {}),
        ...(model ? { model } : {}),
        ...(effort ? { settings: { effort: effort as "low" } } : {}),
      });
      const queued = accepted.status === "queued";
      if (this.session.current.key === key)
        this.setSession(sessions.markAccepted(this.session.current, pending.key, accepted.runId, queued));
      else {
        const others = (loadPendingMessages()[key] ?? []).filter((each) => each.key !== pending.key);
        savePendingMessages(key, others);
      }
    } catch (error) {
      if (error instanceof OfflineError) return; // sent again after reconnecting
      if (this.session.current.key === key)
        this.setSession(sessions.markFailed(this.session.current, pending.key, (error as Error).message));
    }
  }

  private async loadApprovals(): Promise<void> {
    const { approvals } = await this.request("approvals.list", {});
    this.state.update({ approvals });
  }

  private handleEvent(frame: EventFrame): void {
    if (sessions.isRunFrame(frame)) this.handleRunFrame(frame);
    else if (frame.event === "session.updated")
      this.handleSessionUpdate(frame.data.session, frame.data.deleted ?? false);
    else if (frame.event === "approvals.updated") {
      clearTimeout(this.approvalsTimer);
      this.approvalsTimer = setTimeout(() => void this.loadApprovals().catch(ignoreError), APPROVALS_DEBOUNCE_MS);
    } else if (frame.event === "audit.entry") for (const listener of this.auditListeners) listener(frame.data.entry);
    else if (frame.event === "job.updated") for (const listener of this.jobListeners) listener(frame.data.job);
    else if (frame.event === "knowledge.progress") for (const listener of this.progressListeners) listener(frame.data);
    else if (frame.event === "model.progress")
      this.state.update({ modelProgress: { ...this.state.current.modelProgress, [frame.data.id]: frame.data } });
    else if (frame.event === "resource.updated") this.handleResourceUpdate(frame.data);
    else if (frame.event === "agents.trial") for (const listener of this.trialListeners) listener(frame.data);
    else if (frame.event === "server.shutdown") this.state.update({ restarting: true });
  }

  private handleResourceUpdate(resource: ResourceUpdated): void {
    for (const listener of this.resourceListeners) listener(resource);
    if (["agent", "model", "secret"].includes(resource.kind)) void this.loadAgents().catch(ignoreError);
  }

  /** Load the agents and the models again, because they were edited. */
  private async loadAgents(): Promise<void> {
    const [{ agents }, { models }] = await Promise.all([
      this.request("agents.list", {}),
      this.request("models.list", {}),
    ]);
    this.state.update({ agents, models });
  }

  private handleRunFrame(frame: RunFrame): void {
    if (frame.data.sessionKey !== this.session.current.key) return;
    const gap = sessions.hasGapBefore(this.session.current, frame);
    this.setSession(sessions.applyFrame(this.session.current, frame));
    if (gap && this.session.current.loaded) void this.subscribe(true);
  }

  /** Forget that a session has an unread answer. */
  markRead(key: string): void {
    if (!this.state.current.unread.has(key)) return;
    this.state.update({ unread: new Set([...this.state.current.unread].filter((each) => each !== key)) });
  }

  private markUnread(session: SessionShape): void {
    const before = this.state.current.sessions.find((each) => each.sessionKey === session.sessionKey);
    const seen = session.sessionKey === this.session.current.key && !document.hidden;
    if (before?.running && !session.running && !seen)
      this.state.update({ unread: new Set([...this.state.current.unread, session.sessionKey]) });
  }

  private handleSessionUpdate(session: SessionShape, deleted: boolean): void {
    this.markUnread(session);
    const others = this.state.current.sessions.filter((each) => each.sessionKey !== session.sessionKey);
    const hidden = deleted || session.archived;
    this.state.update({
      sessions: hidden ? others : [session, ...others].sort((a, b) => b.updatedAt - a.updatedAt),
    });
    if (session.sessionKey !== this.session.current.key) return;
    if (deleted) this.setSession({ ...this.session.current, deleted: true });
    else {
      this.setSession({ ...this.session.current, session });
      if (session.running) void this.subscribe(); // another client may have queued a message
    }
  }
}

/** For requests whose result no longer matters, or is requested again after reconnecting. */
function ignoreError(): void {}
