// Bar or line chart of several series over named categories. Series differ by colour and by pattern, dash and marker.

import { memo, useId } from "react";
import { ReadText } from "../components/exact-text";
import { toSafeLine } from "../state/unicode-safety";
import { labelledColumns, roundUp } from "./bar-chart";
import { useWidth } from "./width";

export type ChartKind = "bar" | "line";

export interface Series {
  name: string;
  values: number[];
}

interface Props {
  kind: ChartKind;
  label: string;
  categories: string[];
  series: Series[];
}

const MAX_SERIES = 6;
const HEIGHT = 240;
const TOP = 8;
const BOTTOM = 28;
const LEFT = 52;
const LABEL_LENGTH = 8;
const numberFormat = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const DASHES = ["none", "6 4", "2 3", "10 4 2 4", "12 5", "1 5"];
/** Lines over the colour of bars, in a tile of 8 × 8. The first series is plain. */
const PATTERNS = ["", "M-2 10L10 -2M-2 2L2 -2M6 10L10 6", "M0 4H8", "M4 0V8", "M0 0L8 8M8 0L0 8", "M3 4H5M4 3V5"];

/** Return the axis for these values: the lowest and highest label, which include zero. */
function axisRange(values: readonly number[]): { low: number; high: number } {
  const high = Math.max(0, ...values);
  const low = Math.min(0, ...values);
  return { low: low < 0 ? -roundUp(-low) : 0, high: high > 0 || low === 0 ? roundUp(high) : 0 };
}

export const SeriesChart = memo(function SeriesChart({ kind, label, categories, series }: Props) {
  const [figure, width] = useWidth<HTMLElement>();
  const id = useId();
  const shown = series.slice(0, MAX_SERIES);
  const { low, high } = axisRange(shown.flatMap(({ values }) => values));
  const plotWidth = Math.max(width - LEFT - 4, 1);
  const step = plotWidth / Math.max(categories.length, 1);
  const y = (value: number) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const labelled = labelledColumns(categories.length, plotWidth);
  return (
    <figure className="series-chart" ref={figure}>
      <svg width={Math.max(width, 1)} height={HEIGHT} role="img" aria-label={label}>
        <Patterns id={id} count={shown.length} />
        {[high, low < 0 && high > 0 ? 0 : (high + low) / 2, low].map((value) => (
          <g key={value} className="axis">
            <line x1={LEFT} x2={LEFT + plotWidth} y1={y(value)} y2={y(value)} />
            <text x={LEFT - 6} y={y(value) + 4} textAnchor="end">
              {numberFormat.format(value)}
            </text>
          </g>
        ))}
        {shown.map((each, index) =>
          kind === "bar" ? (
            <Bars key={index} series={each} at={[index, shown.length]} step={step} y={y} fill={`url(#${id}${index})`} />
          ) : (
            <Line key={index} series={each} index={index} step={step} y={y} />
          ),
        )}
        {categories.map((name, index) =>
          labelled[index] ? (
            <text key={index} className="category" x={LEFT + step * (index + 0.5)} y={HEIGHT - 10} textAnchor="middle">
              {toSafeLine(name, LABEL_LENGTH)}
            </text>
          ) : null,
        )}
      </svg>
      <figcaption>
        {shown.map(({ name }, index) => (
          <span key={index}>
            <svg width={kind === "bar" ? 12 : 28} height={12} aria-hidden>
              {kind === "bar" ? (
                <rect width={12} height={12} fill={`url(#${id}${index})`} />
              ) : (
                <Line series={{ name, values: [6, 6] }} index={index} step={14} y={(value) => value} left={0} />
              )}
            </svg>{" "}
            <ReadText text={name} />
          </span>
        ))}
        {series.length > MAX_SERIES && <span>{series.length - MAX_SERIES} more columns are in the table.</span>}
      </figcaption>
    </figure>
  );
});

function Patterns({ id, count }: { id: string; count: number }) {
  return (
    <defs>
      {Array.from({ length: count }, (_, index) => (
        <pattern key={index} id={`${id}${index}`} width={8} height={8} patternUnits="userSpaceOnUse">
          <rect width={8} height={8} style={{ fill: `var(--series-${index})` }} />
          <path d={PATTERNS[index]} className="pattern-line" />
        </pattern>
      ))}
    </defs>
  );
}

interface SeriesProps {
  series: Series;
  step: number;
  y: (value: number) => number;
}

function Bars({ series, at: [index, count], step, y, fill }: SeriesProps & { at: [number, number]; fill: string }) {
  const width = Math.max(1, (step * 0.8) / count);
  return series.values.map((value, position) => (
    <rect
      key={position}
      x={LEFT + step * (position + 0.1) + index * width}
      y={Math.min(y(value), y(0))}
      width={width}
      height={Math.max(Math.abs(y(value) - y(0)), 1)}
      fill={fill}
    />
  ));
}

function Line({ series, index, step, y, left = LEFT }: SeriesProps & { index: number; left?: number }) {
  const points = series.values.map((value, position) => [left + step * (position + 0.5), y(value)] as const);
  const style = { stroke: `var(--series-${index})`, strokeDasharray: DASHES[index] };
  return (
    <>
      <polyline className="series-line" points={points.map((point) => point.join(",")).join(" ")} style={style} />
      {points.map(([x, top], position) => (
        <path key={position} d={marker(index, x, top)} style={{ fill: `var(--series-${index})` }} />
      ))}
    </>
  );
}

/** The outline of a point: circle, square, triangle, diamond, lower triangle, bar. */
function marker(index: number, x: number, y: number): string {
  const shapes = [
    `M${x - 3} ${y}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0`,
    `M${x - 3} ${y - 3}h6v6h-6z`,
    `M${x} ${y - 4}l4 7h-8z`,
    `M${x} ${y - 4}l4 4l-4 4l-4 -4z`,
    `M${x} ${y + 4}l4 -7h-8z`,
    `M${x - 1.5} ${y - 4}h3v8h-3z`,
  ];
  return shapes[index % shapes.length] ?? "";
}
