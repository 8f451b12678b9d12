import { readFileSync } from "node:fs";
import { Parser } from "@asyncapi/parser";

const parser = new Parser({ ruleset: { core: true, recommended: false } });
const found = [];
let operations = 0;
for (const part of JSON.parse(readFileSync(0, "utf8"))) {
  const { document, diagnostics } = await parser.parse(JSON.stringify(part));
  operations += document?.operations().all().length ?? 0;
  found.push(...diagnostics.map(({ severity, message, path }) => ({ severity, message, path: path.join("/") })));
}
process.stdout.write(JSON.stringify({ operations, found }));
