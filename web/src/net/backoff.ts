// How long to wait before the next try: longer each time, never the same for everybody.

const FIRST = 250;
const LONGEST = 8000;

export class Backoff {
  private step = 0;

  constructor(private readonly random: () => number = Math.random) {}

  next(): number {
    const full = Math.min(LONGEST, FIRST * 2 ** this.step);
    this.step += 1;
    return Math.round(full * (0.5 + this.random() / 2));
  }

  reset(): void {
    this.step = 0;
  }
}
