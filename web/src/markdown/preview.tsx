// Previews of code blocks: SVG as an image, which runs no script and loads nothing, and CSV as a table with a chart.

import { useMemo } from "react";
import { ReadText } from "../components/exact-text";
import { parseCsv } from "../state/csv";

const MAX_ROWS = 200;
const MAX_BARS = 40;

export default function Preview({ language, code }: { language: string; code: string }) {
  return language === "csv" ? <CsvPreview code={code} /> : <SvgPreview code={code} />;
}

function SvgPreview({ code }: { code: string }) {
  return <img className="diagram" src={`data:image/svg+xml;charset=utf-8,${encodeURIComponent(code)}`} alt="SVG" />;
}

function CsvPreview({ code }: { code: string }) {
  const { header, rows, numeric } = useMemo(() => parseCsv(code), [code]);
  const column = numeric[0];
  return (
    <>
      <div className="table" tabIndex={0}>
        <table>
          <thead>
            <tr>
              {header.map((name, index) => (
                <th key={index}>
                  <ReadText text={name} />
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.slice(0, MAX_ROWS).map((row, line) => (
              <tr key={line}>
                {header.map((_, index) => (
                  <td key={index} className={numeric.includes(index) ? "number" : undefined}>
                    <ReadText text={row[index] ?? ""} />
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows.length > MAX_ROWS && <p className="muted">{rows.length - MAX_ROWS} more rows are not shown.</p>}
      {column !== undefined && <CsvChart label={header[column] ?? ""} rows={rows.slice(0, MAX_BARS)} column={column} />}
    </>
  );
}

/** The first column with numbers as bars; the table above has the values. */
function CsvChart({ label, rows, column }: { label: string; rows: string[][]; column: number }) {
  const name = column === 0 ? 1 : 0;
  const most = Math.max(...rows.map((row) => Math.abs(Number(row[column]))), Number.MIN_VALUE);
  return (
    <ol className="csv-chart" aria-label={`Chart of ${label}`}>
      {rows.map((row, index) => (
        <li key={index}>
          <span className="truncate">
            <ReadText text={row[name] ?? ""} />
          </span>
          <i style={{ width: `${(Math.abs(Number(row[column])) / most) * 100}%` }} />
          <span className="number">{row[column]}</span>
        </li>
      ))}
    </ol>
  );
}
