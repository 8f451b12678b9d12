// Stacked bar chart over days, with one colour and pattern per series, which can also be read as a table.

import { Tooltip } from "antd";
import { useState } from "react";
import { useWidth } from "./width";

export interface DataPoint {
  name: string;
  day: string;
  value: number;
}

export interface StackedSeries {
  days: string[];
  names: string[];
  /** By day, then by name, in the order of both lists. */
  values: number[][];
  max: number;
}

const MAX_SERIES = 6;
const OTHER = "Other";

/** Group data points by day and name, largest series first; series beyond the limit are merged into one. */
export function stackSeries(points: readonly DataPoint[], days: string[]): StackedSeries {
  const totals = new Map<string, number>();
  for (const { name, value } of points) totals.set(name, (totals.get(name) ?? 0) + value);
  const sorted = [...totals.keys()].sort((a, b) => (totals.get(b) ?? 0) - (totals.get(a) ?? 0));
  const names = sorted.length > MAX_SERIES ? [...sorted.slice(0, MAX_SERIES - 1), OTHER] : sorted;
  const columnOf = (name: string) => (names.includes(name) ? names.indexOf(name) : names.length - 1);
  const values = days.map(() => names.map(() => 0));
  for (const { name, day, value } of points) {
    const row = values[days.indexOf(day)];
    const column = columnOf(name);
    if (row) row[column] = (row[column] ?? 0) + value;
  }
  return { days, names, values, max: Math.max(0, ...values.map(sum)) };
}

/** Return the last days up to today in UTC, as the gateway formats them. */
export function lastDays(count: number, now = Date.now()): string[] {
  return Array.from({ length: count }, (_, index) =>
    new Date(now - (count - 1 - index) * 86_400_000).toISOString().slice(0, 10),
  );
}

/** Return the next round number, for the top of an axis that is labelled at half of it as well. */
export function roundUp(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const steps = power === 1 ? [2, 4, 6, 8, 10] : [1, 2, 3, 4, 5, 6, 8, 10]; // even, so that half is a whole number
  return steps.map((step) => step * power).find((rounded) => rounded >= value) ?? value;
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

const dayFormat = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", timeZone: "UTC" });
const LABEL_WIDTH = 46;
const LABEL_GAP = 8;

/** Return whether each of `count` columns has a label: every k-th so that none collide, and always the last one. */
export function labelledColumns(count: number, width: number): boolean[] {
  const interval = Math.max(1, Math.ceil(((LABEL_WIDTH + LABEL_GAP) * count) / Math.max(width, 1)));
  return Array.from({ length: count }, (_, index) => (count - 1 - index) % interval === 0);
}

interface Props {
  series: StackedSeries;
  format: (value: number) => string;
  label: string;
}

export function BarChart(props: Props) {
  const [asTable, setAsTable] = useState(false);
  const Shown = asTable ? SeriesTable : Columns;
  return (
    <>
      <Shown {...props} />
      <p>
        <button type="button" className="view-as-table" onClick={() => setAsTable(!asTable)}>
          {asTable ? "View as chart" : "View as table"}
        </button>
      </p>
    </>
  );
}

/** The days with any value, newest first. */
function SeriesTable({ series, format, label }: Props) {
  const rows = series.days.map((day, index) => ({ day, values: series.values[index] ?? [] }));
  return (
    <div className="table" tabIndex={0}>
      <table className="totals" aria-label={label}>
        <thead>
          <tr>
            <th scope="col">Day</th>
            {series.names.map((name) => (
              <th key={name} scope="col" className="number">
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows
            .filter(({ values }) => sum(values) > 0)
            .reverse()
            .map(({ day, values }) => (
              <tr key={day}>
                <th scope="row">{dayFormat.format(new Date(day))}</th>
                {values.map((value, index) => (
                  <td key={series.names[index]} className="number">
                    {value ? format(value) : "–"}
                  </td>
                ))}
              </tr>
            ))}
        </tbody>
      </table>
    </div>
  );
}

function Columns({ series, format, label }: Props) {
  const top = roundUp(series.max);
  const [plot, width] = useWidth<HTMLDivElement>();
  const labelled = labelledColumns(series.days.length, width);
  return (
    <figure className="bar-chart" aria-label={label}>
      <div className="plot" ref={plot}>
        {[1, 0.5, 0].map((fraction) => (
          <span key={fraction} className="gridline" style={{ bottom: `${fraction * 100}%` }} aria-hidden>
            <i>{format(top * fraction)}</i>
          </span>
        ))}
        <div className="columns">
          {series.days.map((day, dayIndex) => {
            const date = dayFormat.format(new Date(day));
            const values = series.values[dayIndex] ?? [];
            const lines = [
              `${date}: ${format(sum(values))}`,
              ...series.names.flatMap((name, index) => (values[index] ? [`${name} ${format(values[index])}`] : [])),
            ];
            return (
              <Tooltip key={day} title={lines.map((line) => <div key={line}>{line}</div>)}>
                <div className="column" role="img" aria-label={lines.join(", ")}>
                  {values.map((value, index) =>
                    value > 0 ? (
                      <span
                        key={index}
                        className={`segment series-${index}`}
                        style={{ height: `${(value / top) * 100}%` }}
                      />
                    ) : null,
                  )}
                  {labelled[dayIndex] && <em>{date}</em>}
                </div>
              </Tooltip>
            );
          })}
        </div>
      </div>
      <figcaption>
        {series.names.map((name, index) => (
          <span key={name}>
            <i className={`swatch series-${index}`} aria-hidden /> {name}
          </span>
        ))}
      </figcaption>
    </figure>
  );
}
