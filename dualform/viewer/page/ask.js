// Questions, to the server or to the answers inside a report.
//
//     const answer = await ask("predict", questions.predict({index: 12}), {signal});
//
// A report holds its answers in <script type="application/json" id="answers">, by the question's name, a space and the body
// as JSON with sorted keys and no spaces. The functions in `questions` give bodies with every entry, so that there is one
// way to write each of them.

const REPORT = document.getElementById("answers");
const ANSWERS = REPORT ? JSON.parse(REPORT.textContent) : null;
const NOT_IN_REPORT = "This is not in the report. Open the run with: dualform view RUN";
const KEPT = 200; // answers that are remembered, so that going back is instant
const CHANGING = new Set(["run", "jobs", "inputs"]);
const remembered = new Map();
const lossListeners = new Set();

export const inReport = ANSWERS !== null;
export const PAGE_OF_INPUTS = 60;

/** What went wrong: `status` of the answer (0 if there was none) and, while something is being prepared, its `job`. */
export class AskError extends Error {
  constructor(message, {status = 0, job = null} = {}) {
    super(message);
    this.name = "AskError";
    this.status = status;
    this.job = job;
  }
}

export const questions = {
  run: () => ({}),
  jobs: () => ({}),
  inputs: (wanted = {}) => ({start: 0, count: PAGE_OF_INPUTS, class: null, outcome: null, search: "", ...wanted}),
  predict: (input, step = null) => ({input, step}),
  history: (input) => ({input}),
  spotlight: (input, layer, per = null) => ({input, layer, per, top: 12, curve: 500}),
  mute: (input, sets) => ({input, mute: sets}),
  passages: (input, layer, summed = true) => ({input, layer, summed, most: 5}),
};

/** The input a state is about, as questions name it; null when it is about none. */
export function inputOf(now) {
  if (now.page === "prompt") return now.prompt === null ? null : promptOf(now);
  if (typeof now.input === "number") return {index: now.input};
  const drawn = now.input?.slice("drawn:".length);
  return drawn ? {drawn} : null;
}

function promptOf(now) {
  return now.token === null ? {prompt: now.prompt} : {prompt: now.prompt, token: now.token};
}

export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.keys(value)
    .sort()
    .map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`)
    .join(",")}}`;
}

/** Call back with true when the server does not answer any more, and with false when it does again. */
export function onLost(listener) {
  lossListeners.add(listener);
}

function lost(yes) {
  for (const listener of lossListeners) listener(yes);
}

export async function ask(question, body = {}, {signal} = {}) {
  if (inReport) return fromReport(question, body);
  const key = `${question} ${canonical(body)}`;
  if (remembered.has(key)) return remembered.get(key);
  const answer = await fromServer(question, body, signal);
  if (!CHANGING.has(question)) remember(key, answer);
  return answer;
}

function remember(key, answer) {
  remembered.set(key, answer);
  if (remembered.size > KEPT) remembered.delete(remembered.keys().next().value);
}

async function fromServer(question, body, signal) {
  const response = await reach(question, body, signal);
  const answer = await response.json().catch(() => null);
  if (response.ok && answer !== null) return answer;
  signal?.throwIfAborted();
  const message = answer?.error ?? `The server answered ${response.status} to the question "${question}".`;
  throw new AskError(message, {status: response.status, job: answer?.job ?? null});
}

async function reach(question, body, signal) {
  const request = {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body), signal};
  try {
    const response = await fetch(`/api/${question}`, request);
    lost(false);
    return response;
  } catch (error) {
    if (signal?.aborted) throw error;
    lost(true);
    throw new AskError("The server has stopped. Start it again: dualform view RUN");
  }
}

function fromReport(question, body) {
  if (question === "inputs") return listedInReport(body);
  const answer = ANSWERS[`${question} ${canonical(body)}`];
  if (answer === undefined) throw new AskError(NOT_IN_REPORT, {status: 404});
  return answer;
}

// A report holds one list; its filters are applied here.
function listedInReport(body) {
  const all = Object.entries(ANSWERS).find(([key]) => key.startsWith("inputs "))?.[1].inputs ?? [];
  const fits = all.filter((input) => fitsFilters(input, body));
  return {total: fits.length, inputs: fits.slice(body.start, body.start + body.count)};
}

function fitsFilters(input, {class: wanted, outcome, search}) {
  const right = input.predicted === input.label;
  return (
    (wanted === null || input.class === wanted) &&
    (outcome === null || (input.predicted !== null && right === (outcome === "right"))) &&
    String(input.index).includes(search)
  );
}
