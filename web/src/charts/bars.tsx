// Bars over days, one colour for each name.

import { Tooltip } from "antd";
import { roundUp, type Stacks } from "./series";

const dayName = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", timeZone: "UTC" });

export function Bars({ stacks, format, label }: { stacks: Stacks; format: (value: number) => string; label: string }) {
  const top = roundUp(stacks.highest);
  const every = Math.ceil(stacks.days.length / 8);
  return (
    <figure className="bars" aria-label={label}>
      <div className="plot">
        {[1, 0.5, 0].map((part) => (
          <span key={part} className="line" style={{ bottom: `${part * 100}%` }} aria-hidden>
            <i>{format(top * part)}</i>
          </span>
        ))}
        <div className="columns">
          {stacks.days.map((day, place) => {
            const values = stacks.values[place] ?? [];
            const sum = values.reduce((total, each) => total + each, 0);
            const words = [
              `${dayName.format(new Date(day))}: ${format(sum)}`,
              ...stacks.names
                .map((name, number) => (values[number] ? `${name} ${format(values[number] ?? 0)}` : ""))
                .filter(Boolean),
            ];
            return (
              <Tooltip key={day} title={words.map((each) => <div key={each}>{each}</div>)}>
                <div className="column" role="img" aria-label={words.join(", ")}>
                  {values.map((value, number) =>
                    value > 0 ? (
                      <span
                        key={number}
                        className={`piece tone-${number}`}
                        style={{ height: `${(value / top) * 100}%` }}
                      />
                    ) : null,
                  )}
                  {place % every === 0 && <em>{dayName.format(new Date(day))}</em>}
                </div>
              </Tooltip>
            );
          })}
        </div>
      </div>
      <figcaption>
        {stacks.names.map((name, number) => (
          <span key={name}>
            <i className={`swatch tone-${number}`} aria-hidden /> {name}
          </span>
        ))}
      </figcaption>
    </figure>
  );
}
