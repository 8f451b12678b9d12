// A value that views can follow. Many changes in a short time are one piece of news: at most 16 a second.

export const BEAT = 62;

export class Store<T> {
  private listeners = new Set<() => void>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private last = 0;
  private shown: T;

  constructor(
    private value: T,
    private readonly beat = BEAT,
    private readonly now: () => number = () => performance.now(),
  ) {
    this.shown = value;
  }

  /** The value as it is. */
  get current(): T {
    return this.value;
  }

  /** The value as views see it. */
  readonly snapshot = (): T => this.shown;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  set(value: T): void {
    if (value === this.value) return;
    this.value = value;
    if (this.timer !== undefined) return;
    const wait = Math.max(0, this.last + this.beat - this.now());
    this.timer = setTimeout(() => this.flush(), wait);
  }

  change(part: Partial<T>): void {
    this.set({ ...this.value, ...part });
  }

  /** Show it now: somebody has just done this by hand. */
  flush(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.last = this.now();
    this.shown = this.value;
    for (const listener of this.listeners) listener();
  }
}
