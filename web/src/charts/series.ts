// From rows by name and day to stacks that a chart can draw.

export interface Point {
  name: string;
  day: string;
  value: number;
}

export interface Stacks {
  days: string[];
  names: string[];
  /** By day, then by name, in the order of both lists. */
  values: number[][];
  highest: number;
}

const MOST = 6;
export const OTHERS = "others";

export function stacked(points: readonly Point[], days: string[]): Stacks {
  const totals = new Map<string, number>();
  for (const { name, value } of points) totals.set(name, (totals.get(name) ?? 0) + value);
  const sorted = [...totals.keys()].sort((a, b) => (totals.get(b) ?? 0) - (totals.get(a) ?? 0));
  const names = sorted.length > MOST ? [...sorted.slice(0, MOST - 1), OTHERS] : sorted;
  const place = (name: string) => (names.includes(name) ? names.indexOf(name) : names.length - 1);
  const values = days.map(() => names.map(() => 0));
  for (const { name, day, value } of points) {
    const row = values[days.indexOf(day)];
    const column = place(name);
    if (row) row[column] = (row[column] ?? 0) + value;
  }
  return {
    days,
    names,
    values,
    highest: Math.max(0, ...values.map((row) => row.reduce((sum, each) => sum + each, 0))),
  };
}

/** The last days up to today, as the gateway writes them. */
export function lastDays(count: number, now = Date.now()): string[] {
  return Array.from({ length: count }, (_, place) =>
    new Date(now - (count - 1 - place) * 86_400_000).toISOString().slice(0, 10),
  );
}

/** The next round number above. */
export function roundUp(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const steps = power === 1 ? [2, 4, 6, 8, 10] : [1, 2, 3, 4, 5, 6, 8, 10]; // half of it is shown too: a whole number
  return steps.map((each) => each * power).find((each) => each >= value) ?? value;
}
