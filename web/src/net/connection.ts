// One socket to the gateway that served this page, and to nobody else; it comes back by itself.

import type { Events, FaultShape, Methods, Welcome } from "../wire";
import { Backoff } from "./backoff";

export type Link = "connecting" | "online" | "offline" | "refused";
export type EventName = keyof Events;
export type EventFrame = { [N in EventName]: { event: N; data: Events[N] } }[EventName];

export class Offline extends Error {
  constructor() {
    super("The gateway cannot be reached right now.");
  }
}

/** A request was answered with a refusal. */
export class Refusal extends Error {
  readonly kind: string;
  readonly retryable: boolean;

  constructor(fault: FaultShape) {
    super(fault.message);
    this.kind = fault.data.kind;
    this.retryable = fault.data.retryable;
  }
}

interface Waiting {
  resolve: (result: never) => void;
  reject: (error: Error) => void;
}

export interface Listener {
  link(link: Link, reason?: string): void;
  welcome(welcome: Welcome): void;
  event(frame: EventFrame): void;
}

const BAD_TOKEN = 4401;
const PULSE = 20_000;
const PATIENCE = 8_000;

export class Connection {
  private socket: WebSocket | null = null;
  private waiting = new Map<string, Waiting>();
  private numbers = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private pulse: ReturnType<typeof setInterval> | undefined;
  private backoff = new Backoff();
  private open = false;
  private ended = false;

  constructor(
    private readonly token: string,
    private readonly listener: Listener,
    private readonly url = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`,
  ) {}

  start(): void {
    if (this.ended || this.socket) return;
    clearTimeout(this.timer);
    this.listener.link("connecting");
    const socket = new WebSocket(this.url);
    this.socket = socket;
    const client = { name: "page", version: "1" };
    socket.onopen = () => socket.send(JSON.stringify({ type: "auth", token: this.token, protocol: 1, client }));
    socket.onmessage = (message: MessageEvent<string>) => this.hear(JSON.parse(message.data));
    socket.onclose = (end) => this.lost(socket, end.code);
  }

  /** Try now rather than later: the machine woke up, or somebody is looking. */
  hurry(): void {
    if (this.ended) return;
    if (this.socket === null) this.start();
    else if (this.open) void this.beat();
  }

  end(): void {
    this.ended = true;
    clearTimeout(this.timer);
    clearInterval(this.pulse);
    this.socket?.close();
  }

  request<M extends keyof Methods>(method: M, params: Methods[M]["params"]): Promise<Methods[M]["result"]> {
    const socket = this.socket;
    if (!socket || !this.open) return Promise.reject(new Offline());
    const id = `p${++this.numbers}`;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      socket.send(JSON.stringify({ id, method, params }));
    });
  }

  private hear(frame: Record<string, unknown>): void {
    if (frame.type === "auth") {
      if (frame.ok !== true) return; // the socket is closed next, and says so
      this.open = true;
      this.backoff.reset();
      this.pulse = setInterval(() => void this.beat(), PULSE);
      this.listener.welcome(frame as unknown as Welcome);
      this.listener.link("online");
    } else if (typeof frame.event === "string") {
      this.listener.event(frame as unknown as EventFrame);
    } else if (typeof frame.id === "string") {
      const waiting = this.waiting.get(frame.id);
      this.waiting.delete(frame.id);
      if (frame.error) waiting?.reject(new Refusal(frame.error as FaultShape));
      else waiting?.resolve(frame.result as never);
    }
  }

  /** A line can die without a word: ask, and hang up if nothing comes back. */
  private async beat(): Promise<void> {
    const socket = this.socket;
    const timer = setTimeout(() => socket && this.drop(socket), PATIENCE);
    try {
      await this.request("health.check", {});
    } catch {
      // a refusal is an answer too
    } finally {
      clearTimeout(timer);
    }
  }

  private drop(socket: WebSocket): void {
    socket.close();
    this.lost(socket, 1006);
  }

  private lost(socket: WebSocket, code: number): void {
    if (socket !== this.socket) return;
    this.socket = null;
    this.open = false;
    clearInterval(this.pulse);
    for (const each of this.waiting.values()) each.reject(new Offline());
    this.waiting.clear();
    if (this.ended) return;
    if (code === BAD_TOKEN) {
      this.ended = true;
      this.listener.link("refused");
      return;
    }
    this.listener.link("offline");
    this.timer = setTimeout(() => this.start(), this.backoff.next());
  }
}
