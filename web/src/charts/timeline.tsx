// One turn as a picture: a row for each round, call and wait, as long as it took.

import { Tooltip } from "antd";
import { spanOf } from "../state/words";
import { type Timeline, ticks } from "./spans";

const KINDS = { model: "Model", call: "Tool", wait: "Waits for a person", away: "Away" };

export function TimelinePicture({ timeline }: { timeline: Timeline }) {
  const length = timeline.to - timeline.from;
  const part = (at: number) => `${((at - timeline.from) / length) * 100}%`;
  return (
    <figure className="timeline">
      <ul aria-label="Steps of this turn">
        {timeline.spans.map((span, place) => (
          <li key={place}>
            <span className="who" title={span.name}>
              <i className={`swatch ${span.kind}`} aria-hidden /> {span.name}
            </span>
            <span className="track">
              <Tooltip
                title={`${KINDS[span.kind]}: ${spanOf(span.to - span.from)}${span.words ? ` – ${span.words}` : ""}`}
              >
                <span
                  className={`bar ${span.kind} is-${span.state}`}
                  style={{ left: part(span.from), width: `max(3px, ${((span.to - span.from) / length) * 100}%)` }}
                  tabIndex={0}
                  role="img"
                  aria-label={`${KINDS[span.kind]} ${span.name}, ${spanOf(span.to - span.from)} ${span.words}`}
                />
              </Tooltip>
            </span>
            <span className="took">{spanOf(span.to - span.from)}</span>
          </li>
        ))}
      </ul>
      <div className="scale" aria-hidden>
        <span className="track">
          {ticks(length).map((at) => (
            <i key={at} style={{ left: `${(at / length) * 100}%` }}>
              {at === 0 ? "0" : spanOf(at)}
            </i>
          ))}
        </span>
      </div>
      <figcaption>
        {(["model", "call", "wait"] as const).map((kind) => (
          <span key={kind}>
            <i className={`swatch ${kind}`} aria-hidden /> {KINDS[kind]}
          </span>
        ))}
      </figcaption>
    </figure>
  );
}
