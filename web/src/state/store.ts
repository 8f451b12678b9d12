// Observable value for React views. Notifications are throttled: a burst of changes causes at most 16 per second.

const NOTIFY_INTERVAL_MS = 62;

export class Store<T> {
  private listeners = new Set<() => void>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private lastNotified = 0;
  private published: T;

  constructor(
    private value: T,
    private readonly intervalMs = NOTIFY_INTERVAL_MS,
    private readonly now: () => number = () => performance.now(),
  ) {
    this.published = value;
  }

  /** The latest value. */
  get current(): T {
    return this.value;
  }

  /** The value that views were last notified of. */
  readonly snapshot = (): T => this.published;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  set(value: T): void {
    if (value === this.value) return;
    this.value = value;
    if (this.timer !== undefined) return;
    const delay = Math.max(0, this.lastNotified + this.intervalMs - this.now());
    this.timer = setTimeout(() => this.flush(), delay);
  }

  update(change: Partial<T>): void {
    this.set({ ...this.value, ...change });
  }

  /** Notify now, without throttling: the change is the direct result of a user action. */
  flush(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.lastNotified = this.now();
    this.published = this.value;
    for (const listener of this.listeners) listener();
  }
}
