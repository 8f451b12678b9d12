// AG-UI agent without a page: runs the steps it reads from standard input, and prints the result of each.
// A step is {say}, {resume}, or {answers} with the results of the calls that the last run left pending. {tools, context,
// state} are sent with it, {runId} repeats a run; {stop: name} aborts the run at the first event of that name.

import { text } from "node:stream/consumers";
import { HttpAgent } from "@ag-ui/client";

const { url, token, threadId, steps } = JSON.parse(await text(process.stdin));
const agent = new HttpAgent({ url, threadId, headers: { Authorization: `Bearer ${token}` } });
console.error = () => {}; // the client logs the errors that it throws
const results = [];

for (const [number, { say, resume, answers: posted, tools, context, state, stop, runId }] of steps.entries()) {
  const events = [];
  let failure = null;
  if (state) agent.setState(state);
  if (say) agent.addMessage({ id: `message-${number}`, role: "user", content: say });
  const pending = results.at(-1)?.events.at(-1)?.outcome?.pendingToolCallIds ?? [];
  posted?.forEach((content, at) => {
    agent.addMessage({ id: `result-${number}-${at}`, role: "tool", toolCallId: pending[at], content });
  });
  const answers = resume?.map((each) => ({ interruptId: agent.pendingInterrupts[0]?.id, ...each }));
  try {
    await agent.runAgent(
      { runId: runId ?? `run-${number}`, tools, context, ...(answers && { resume: answers }) },
      {
        onEvent: ({ event }) => {
          events.push(event);
          if (event.type === stop) agent.abortRun();
        },
      },
    );
  } catch (error) {
    failure = String(error.message ?? error);
  }
  results.push(structuredClone({ events, failure, messages: agent.messages, state: agent.state, interrupts: agent.pendingInterrupts }));
}

console.log(JSON.stringify(results));
