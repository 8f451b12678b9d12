// Schedules as people write and read them: what a cron expression says, and what is wrong with a new one.

export interface Draft {
  name: string;
  cron: string;
  zone: string;
  task: string;
}

export type Field = keyof Draft;
export type Faults = Partial<Record<Field | "form", string>>;

export const EXAMPLES = ["0 * * * *", "0 9 * * *", "0 9 * * 1-5", "0 9 * * 1", "0 9 1 * *"];
const SHORT: Record<string, string> = {
  "@hourly": "0 * * * *",
  "@daily": "0 0 * * *",
  "@weekly": "0 0 * * 0",
  "@monthly": "0 0 1 * *",
  "@yearly": "0 0 1 1 *",
};
const DAYS = ["Sundays", "Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays"];
const isNumber = (field: string, most: number): boolean => /^\d{1,2}$/.test(field) && Number(field) <= most;

/** An expression in words, where it is a plain one; else nothing, and it speaks for itself. */
export function cronWords(cron: string): string | undefined {
  const written = cron.trim();
  const [minute = "", hour = "", day = "", month = "", weekday = "", ...rest] = (SHORT[written] ?? written).split(
    /\s+/,
  );
  if (!weekday || rest.length > 0 || month !== "*") return undefined;
  if (hour === "*" && day === "*" && weekday === "*") return hourly(minute);
  if (!isNumber(minute, 59) || !isNumber(hour, 23)) return undefined;
  const days = daysOf(day, weekday);
  return days && `${days} at ${hour.padStart(2, "0")}:${minute.padStart(2, "0")}`;
}

function hourly(minute: string): string | undefined {
  if (minute === "*") return "Every minute";
  const step = /^\*\/(\d{1,2})$/.exec(minute)?.[1];
  if (step) return Number(step) > 1 && 60 % Number(step) === 0 ? `Every ${Number(step)} minutes` : undefined;
  if (!isNumber(minute, 59)) return undefined;
  return Number(minute) === 0 ? "Every hour" : `Every hour, ${Number(minute)} min past`;
}

function daysOf(day: string, weekday: string): string | undefined {
  if (day === "*" && weekday === "*") return "Every day";
  if (day === "*" && weekday === "1-5") return "Working days";
  if (day === "*" && isNumber(weekday, 7)) return DAYS[Number(weekday) % 7];
  return weekday === "*" && isNumber(day, 31) && day !== "0" ? `Day ${Number(day)} of every month` : undefined;
}

/** What can be said before the gateway is asked. */
export function faultsOf({ name, cron, task }: Draft): Faults {
  return {
    ...(/^[\p{L}\p{N}_.-]{1,64}$/u.test(name)
      ? {}
      : { name: name ? "Letters, digits, . _ and - only, without spaces." : "Give it a name." }),
    ...(cron.trim() ? {} : { cron: "Say when: five fields, or a word like @daily." }),
    ...(task.trim() ? {} : { task: "Say what is to be done." }),
  };
}

/** Where in the form a refusal of the gateway belongs. */
export function faultOf(refusal: string): Faults {
  const places: [RegExp, Field][] = [
    [/cron expression|never comes/, "cron"],
    [/time zone/, "zone"],
    [/of this name|no name for/, "name"],
    [/has no task/, "task"],
  ];
  return { [places.find(([words]) => words.test(refusal))?.[1] ?? "form"]: refusal };
}
