// Previews of artifacts: HTML in a sandboxed frame without connections, SVG as an image, which runs no script and loads
// nothing, and CSV as a table or a chart.

import { useMemo, useState } from "react";
import { type ChartKind, SeriesChart } from "../charts/series-chart";
import { ReadText } from "../components/exact-text";
import { parseCsv } from "../state/csv";

const MAX_ROWS = 200;
const MAX_CHARTED = 60;

/** Runs an HTML document without access to the page, to cookies and to other sites; see `artifact-frame.html`. */
export function HtmlPreview({ code, title }: { code: string; title: string }) {
  const [sent, setSent] = useState(false);
  return (
    <>
      <iframe
        className="html-preview"
        title={`Preview of ${title}`}
        sandbox="allow-scripts"
        referrerPolicy="no-referrer"
        src="/artifact-frame"
        onLoad={({ currentTarget }) => {
          if (!sent) currentTarget.contentWindow?.postMessage({ html: code }, "*"); // its origin has no name
          setSent(true);
        }}
      />
      <p className="muted preview-note">
        Runs in a sandbox. It can’t load anything from the internet and can’t see your chats.
      </p>
    </>
  );
}

export function SvgPreview({ code, title }: { code: string; title: string }) {
  return <img className="diagram" src={`data:image/svg+xml;charset=utf-8,${encodeURIComponent(code)}`} alt={title} />;
}

export function CsvTable({ code }: { code: string }) {
  const { header, rows, numeric } = useMemo(() => parseCsv(code), [code]);
  return (
    <>
      <div className="table" tabIndex={0}>
        <table>
          <thead>
            <tr>
              {header.map((name, index) => (
                <th key={index} scope="col" className={numeric.includes(index) ? "number" : undefined}>
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
    </>
  );
}

/** The columns with numbers, over the values of the first other column. */
export function CsvChart({ code, onTable }: { code: string; onTable: () => void }) {
  const { header, rows, numeric } = useMemo(() => parseCsv(code), [code]);
  const [kind, setKind] = useState<ChartKind>("bar");
  const labelled = header.findIndex((_, index) => !numeric.includes(index));
  const label = labelled < 0 ? (numeric.length > 1 ? 0 : -1) : labelled;
  const charted = rows.slice(0, MAX_CHARTED);
  const columns = numeric.filter((column) => column !== label);
  if (columns.length === 0) return <p className="muted">No chart: no column contains only numbers.</p>;
  return (
    <>
      <div className="row">
        {(["bar", "line"] as const).map((each) => (
          <button
            type="button"
            key={each}
            className="preview-toggle"
            aria-pressed={each === kind}
            onClick={() => setKind(each)}
          >
            {each === "bar" ? "Bars" : "Lines"}
          </button>
        ))}
        <button type="button" className="preview-toggle" onClick={onTable}>
          View as table
        </button>
      </div>
      <SeriesChart
        kind={kind}
        label={`Chart of ${columns.map((column) => header[column]).join(", ")}`}
        categories={charted.map((row, index) => (label < 0 ? String(index + 1) : (row[label] ?? "")))}
        series={columns.map((column) => ({
          name: header[column] ?? "",
          values: charted.map((row) => Number(row[column])),
        }))}
      />
      {rows.length > MAX_CHARTED && <p className="muted">The first {MAX_CHARTED} rows are shown.</p>}
    </>
  );
}
