// Schedules: plain-English cron descriptions and validation of a new schedule.

export interface ScheduleDraft {
  name: string;
  cron: string;
  zone: string;
  task: string;
}

export type ScheduleField = keyof ScheduleDraft;
export type ScheduleErrors = Partial<Record<ScheduleField | "form", string>>;

export const CRON_EXAMPLES = ["0 * * * *", "0 9 * * *", "0 9 * * 1-5", "0 9 * * 1", "0 9 1 * *"];
const SHORTCUTS: Record<string, string> = {
  "@hourly": "0 * * * *",
  "@daily": "0 0 * * *",
  "@weekly": "0 0 * * 0",
  "@monthly": "0 0 1 * *",
  "@yearly": "0 0 1 1 *",
};
const WEEKDAYS = ["Sundays", "Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays"];
const isNumber = (field: string, max: number): boolean => /^\d{1,2}$/.test(field) && Number(field) <= max;

/** Describe a simple cron expression in words; return undefined for others. */
export function describeCron(cron: string): string | undefined {
  const expression = cron.trim();
  const fields = (SHORTCUTS[expression] ?? expression).split(/\s+/);
  const [minute = "", hour = "", day = "", month = "", weekday = "", ...rest] = fields;
  if (!weekday || rest.length > 0 || month !== "*") return undefined;
  if (hour === "*" && day === "*" && weekday === "*") return describeHourly(minute);
  if (!isNumber(minute, 59) || !isNumber(hour, 23)) return undefined;
  const days = describeDays(day, weekday);
  return days && `${days} at ${hour.padStart(2, "0")}:${minute.padStart(2, "0")}`;
}

function describeHourly(minute: string): string | undefined {
  if (minute === "*") return "Every minute";
  const step = /^\*\/(\d{1,2})$/.exec(minute)?.[1];
  if (step) return Number(step) > 1 && 60 % Number(step) === 0 ? `Every ${Number(step)} minutes` : undefined;
  if (!isNumber(minute, 59)) return undefined;
  return Number(minute) === 0 ? "Every hour" : `Every hour at :${minute.padStart(2, "0")}`;
}

function describeDays(day: string, weekday: string): string | undefined {
  if (day === "*" && weekday === "*") return "Every day";
  if (day === "*" && weekday === "1-5") return "Weekdays";
  if (day === "*" && isNumber(weekday, 7)) return WEEKDAYS[Number(weekday) % 7];
  return weekday === "*" && isNumber(day, 31) && day !== "0" ? `Monthly on day ${Number(day)}` : undefined;
}

/** Validate what can be checked without the gateway. */
export function validateSchedule({ name, cron, task }: ScheduleDraft): ScheduleErrors {
  const errors: ScheduleErrors = {};
  if (!name) errors.name = "Enter a name.";
  else if (!/^[\p{L}\p{N}_.-]{1,64}$/u.test(name)) errors.name = "Use only letters, digits, “.”, “_” and “-”.";
  if (!cron.trim()) errors.cron = "Enter a cron expression or a shortcut such as @daily.";
  if (!task.trim()) errors.task = "Enter a task.";
  return errors;
}

/** Assign an error message of the gateway to the field that it mentions. */
export function assignError(message: string): ScheduleErrors {
  const fields: [RegExp, ScheduleField][] = [
    [/\bcron\b|never comes|never occurs|no next time/i, "cron"],
    [/time zone/i, "zone"],
    [/\bname\b|already exists/i, "name"],
    [/\btask\b/i, "task"],
  ];
  return { [fields.find(([pattern]) => pattern.test(message))?.[1] ?? "form"]: message };
}
