// Runs a tool-calling session with the `ollama` package, whole and streamed. Reads what to do from
// standard input, and writes what each answer of the model said, both as JSON.

import { Ollama } from "ollama";

const MAX_STEPS = 8;

async function readInput() {
  const pieces = [];
  for await (const piece of process.stdin) pieces.push(piece);
  return JSON.parse(Buffer.concat(pieces).toString("utf8"));
}

async function whole(client, request) {
  const answer = await client.chat(request);
  return { message: answer.message, last: answer };
}

async function streamed(client, request) {
  const message = { role: "assistant", content: "" };
  let last;
  for await (const line of await client.chat({ ...request, stream: true })) {
    message.content += line.message.content;
    if (line.message.thinking) message.thinking = (message.thinking ?? "") + line.message.thinking;
    if (line.message.tool_calls)
      message.tool_calls = [...(message.tool_calls ?? []), ...line.message.tool_calls];
    last = line;
  }
  return { message, last };
}

async function session(client, asked, way) {
  const messages = [{ role: "user", content: asked.question }];
  const said = [];
  for (let step = 0; step < MAX_STEPS; step++) {
    const { message, last } = await way(client, {
      model: asked.model,
      messages,
      tools: asked.tools,
    });
    const calls = (message.tool_calls ?? []).map((call) => call.function);
    said.push({
      reasoning: message.thinking ?? "",
      text: message.content,
      calls: calls.map((call) => [call.name, call.arguments]),
      done: last.done_reason,
      tokens: last.eval_count,
    });
    if (calls.length === 0) return said;
    messages.push(message);
    for (const { name } of calls)
      messages.push({ role: "tool", content: asked.results[name], tool_name: name });
  }
  return said;
}

async function failure(work) {
  try {
    for await (const line of await work()) line;
    return null;
  } catch (error) {
    return { status: error.status_code ?? null, message: error.message };
  }
}

const asked = await readInput();
const client = new Ollama({
  host: asked.host,
  headers: { Authorization: `Bearer ${asked.key}` },
});
const result = {
  collected: await session(client, asked, whole),
  streamed: await session(client, asked, streamed),
  models: (await client.list()).models.map((model) => model.name),
  capabilities: (await client.show({ model: asked.model })).capabilities,
  running: (await client.ps()).models.map((model) => model.name),
  unknown: await failure(() =>
    client.generate({ model: "nope", prompt: "x", stream: true }),
  ),
};
process.stdout.write(JSON.stringify(result));
