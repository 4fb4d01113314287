// Runs a tool-calling session with each of the AI SDK's providers, whole and streamed. Reads what
// to do from standard input, and writes what each answer of the model said, both as JSON.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const MAX_STEPS = 8;
// It asks for reasoning only where it takes the model for one that reasons.
const PROVIDER_OPTIONS = {
  "openai.responses": { openai: { forceReasoning: true, reasoningSummary: "auto" } },
};

async function readInput() {
  const pieces = [];
  for await (const piece of process.stdin) pieces.push(piece);
  return JSON.parse(Buffer.concat(pieces).toString("utf8"));
}

function models({ baseURL, apiKey, model }) {
  const openai = createOpenAI({ baseURL, apiKey });
  const compatible = createOpenAICompatible({ name: "fleet", baseURL, apiKey, includeUsage: true });
  return {
    "openai-compatible": compatible(model),
    "openai.chat": openai.chat(model),
    "openai.responses": openai.responses(model),
    anthropic: createAnthropic({ baseURL, apiKey })(model),
  };
}

function tools(asked) {
  return Object.fromEntries(
    asked.tools.map(({ name, description, parameters }) => [
      name,
      tool({
        description,
        inputSchema: jsonSchema(parameters),
        execute: async () => asked.results[name],
      }),
    ]),
  );
}

function said(step) {
  return {
    reasoning: step.reasoningText ?? "",
    text: step.text,
    calls: step.toolCalls.map((call) => [call.toolName, call.input]),
    finish: step.finishReason,
    tokens: step.usage.outputTokens,
  };
}

async function streamed(request) {
  const errors = [];
  const result = streamText({ ...request, onError: ({ error }) => errors.push(error) });
  const texts = [];
  for await (const part of result.fullStream) {
    if (part.type === "text-delta") texts.push(part.text);
  }
  if (errors.length > 0) throw errors[0];
  const steps = await result.steps;
  const whole = steps.map((step) => step.text).join("");
  if (texts.join("") !== whole) throw new Error("The deltas are not the text.");
  return steps.map(said);
}

async function generated(request) {
  const result = await generateText(request);
  return result.steps.map(said);
}

const asked = await readInput();
const sessions = {};
for (const [name, model] of Object.entries(models(asked))) {
  const request = {
    model,
    tools: tools(asked),
    prompt: asked.question,
    stopWhen: stepCountIs(MAX_STEPS),
    maxRetries: 0,
    maxOutputTokens: asked.maxTokens,
    providerOptions: PROVIDER_OPTIONS[name],
  };
  sessions[name] = { collected: await generated(request), streamed: await streamed(request) };
}
process.stdout.write(JSON.stringify(sessions));
