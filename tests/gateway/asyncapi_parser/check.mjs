import { readFileSync } from "node:fs";
import { Parser } from "@asyncapi/parser";

const { document, diagnostics } = await new Parser({ ruleset: { core: true, recommended: false } }).parse(readFileSync(0, "utf8"));
const found = diagnostics.map(({ severity, message, path }) => ({ severity, message, path: path.join("/") }));
process.stdout.write(JSON.stringify({ operations: document?.operations().all().length ?? 0, found }));
