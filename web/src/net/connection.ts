// WebSocket connection to the gateway that served this page. The cookie of the browser authenticates it. Reconnects with backoff when it is lost.

import { toSentence } from "../state/format";
import type { CurrentValue, ErrorPayload, Events, Methods, WelcomeFrame } from "../wire";

export type ConnectionStatus = "connecting" | "online" | "offline" | "unauthorized";
export type EventName = keyof Events;
export type EventFrame = { [N in EventName]: { event: N; data: Events[N] } }[EventName];

export class OfflineError extends Error {
  constructor() {
    super("The gateway is unreachable.");
  }
}

/** The gateway answered a request with an error. */
export class RequestError extends Error {
  readonly kind: string;
  readonly retryable: boolean;
  /** What someone else wrote, if the kind is CONFLICT. */
  readonly current: CurrentValue | undefined;

  constructor(error: ErrorPayload) {
    super(toSentence(error.message));
    this.kind = error.data.kind;
    this.retryable = error.data.retryable;
    this.current = error.data.current ?? undefined;
  }
}

interface PendingRequest {
  resolve: (result: never) => void;
  reject: (error: Error) => void;
}

export interface ConnectionListener {
  onStatus(status: ConnectionStatus): void;
  onWelcome(welcome: WelcomeFrame): void;
  onEvent(frame: EventFrame): void;
}

const UNAUTHORIZED_CODE = 4401;
const ABNORMAL_CLOSURE_CODE = 1006;
const HEARTBEAT_INTERVAL_MS = 20_000;
const HEARTBEAT_TIMEOUT_MS = 8_000;
const BACKOFF_BASE_MS = 250;
const BACKOFF_MAX_MS = 8_000;

/** Exponential backoff with jitter. */
export class Backoff {
  private attempt = 0;

  constructor(private readonly random: () => number = Math.random) {}

  next(): number {
    const delay = Math.min(BACKOFF_MAX_MS, BACKOFF_BASE_MS * 2 ** this.attempt);
    this.attempt += 1;
    return Math.round(delay * (0.5 + this.random() / 2));
  }

  reset(): void {
    this.attempt = 0;
  }
}

export class Connection {
  private socket: WebSocket | null = null;
  private pending = new Map<string, PendingRequest>();
  private requestCount = 0;
  private reconnectTimer: ReturnType<typeof setTimeout> | undefined;
  private heartbeatTimer: ReturnType<typeof setInterval> | undefined;
  private backoff = new Backoff();
  private authenticated = false;
  private closed = false;

  constructor(
    private readonly listener: ConnectionListener,
    private readonly url = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`,
  ) {}

  open(): void {
    if (this.closed || this.socket) return;
    clearTimeout(this.reconnectTimer);
    this.listener.onStatus("connecting");
    const socket = new WebSocket(this.url);
    this.socket = socket;
    const client = { name: "page", version: "1" };
    socket.onopen = () => socket.send(JSON.stringify({ type: "auth", protocol: 1, client }));
    socket.onmessage = (message: MessageEvent<string>) => this.handleFrame(JSON.parse(message.data));
    socket.onclose = (event) => this.handleClose(socket, event.code);
  }

  /** Reconnect or check the connection now, without waiting for a timer: the network or the page came back. */
  wake(): void {
    if (this.closed) return;
    if (this.socket === null) this.open();
    else if (this.authenticated) void this.sendHeartbeat();
  }

  close(): void {
    this.closed = true;
    clearTimeout(this.reconnectTimer);
    clearInterval(this.heartbeatTimer);
    this.socket?.close();
  }

  request<M extends keyof Methods>(method: M, params: Methods[M]["params"]): Promise<Methods[M]["result"]> {
    const socket = this.socket;
    if (!socket || !this.authenticated) return Promise.reject(new OfflineError());
    const id = `p${++this.requestCount}`;
    return new Promise((resolve, reject) => {
      this.pending.set(id, { resolve, reject });
      socket.send(JSON.stringify({ id, method, params }));
    });
  }

  private handleFrame(frame: Record<string, unknown>): void {
    if (frame.type === "auth") {
      if (frame.ok !== true) return; // the gateway closes the socket next, with a code that says why
      this.authenticated = true;
      this.backoff.reset();
      this.heartbeatTimer = setInterval(() => void this.sendHeartbeat(), HEARTBEAT_INTERVAL_MS);
      this.listener.onWelcome(frame as unknown as WelcomeFrame);
      this.listener.onStatus("online");
    } else if (typeof frame.event === "string") {
      this.listener.onEvent(frame as unknown as EventFrame);
    } else if (typeof frame.id === "string") {
      const request = this.pending.get(frame.id);
      this.pending.delete(frame.id);
      if (frame.error) request?.reject(new RequestError(frame.error as ErrorPayload));
      else request?.resolve(frame.result as never);
    }
  }

  /** A dead connection may not close by itself: drop it if a heartbeat gets no answer. */
  private async sendHeartbeat(): Promise<void> {
    const socket = this.socket;
    const timer = setTimeout(() => socket && this.drop(socket), HEARTBEAT_TIMEOUT_MS);
    try {
      await this.request("health.check", {});
    } catch {
      // an error response also proves that the connection works
    } finally {
      clearTimeout(timer);
    }
  }

  private drop(socket: WebSocket): void {
    socket.close();
    this.handleClose(socket, ABNORMAL_CLOSURE_CODE);
  }

  private handleClose(socket: WebSocket, code: number): void {
    if (socket !== this.socket) return;
    this.socket = null;
    this.authenticated = false;
    clearInterval(this.heartbeatTimer);
    for (const request of this.pending.values()) request.reject(new OfflineError());
    this.pending.clear();
    if (this.closed) return;
    if (code === UNAUTHORIZED_CODE) {
      this.closed = true;
      this.listener.onStatus("unauthorized");
      return;
    }
    this.listener.onStatus("offline");
    this.reconnectTimer = setTimeout(() => this.open(), this.backoff.next());
  }
}
