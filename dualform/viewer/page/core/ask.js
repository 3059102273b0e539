// Asking: of the server, or of the answers inside a report.
//
//     const answer = await ask("predict", {input: {index: 12}}, {signal});
//
// A report holds its answers in <script type="application/json" id="answers">, by the keys of requests.
import {complete, keyOf} from "viewer/core/requests";

const REPORT = document.getElementById("answers");
const ANSWERS = REPORT ? JSON.parse(REPORT.textContent) : null;
const NOT_IN_REPORT = "This is not in the report. Open the run with: dualform view RUN";
const MAX_REMEMBERED = 200; // answers, so that going back is instant
const CHANGING = new Set(["run", "jobs", "inputs", "train"]);
const remembered = new Map();
const lossListeners = new Set();

export const inReport = ANSWERS !== null;

/** What went wrong: `status` of the answer (0 if there was none) and, while something is being prepared, its `job`. */
export class AskError extends Error {
  constructor(message, {status = 0, job = null} = {}) {
    super(message);
    this.name = "AskError";
    this.status = status;
    this.job = job;
  }
}

/** Call back with true when the server does not answer any more, and with false when it does again. */
export function onLost(listener) {
  lossListeners.add(listener);
}

function lost(yes) {
  for (const listener of lossListeners) listener(yes);
}

export async function ask(name, body = {}, {signal} = {}) {
  if (inReport) return fromReport(name, complete(name, body));
  const key = keyOf(name, body);
  if (remembered.has(key)) return remembered.get(key);
  const answer = await fromServer(name, body, signal);
  if (!CHANGING.has(name)) remember(key, answer);
  return answer;
}

function remember(key, answer) {
  remembered.set(key, answer);
  if (remembered.size > MAX_REMEMBERED) remembered.delete(remembered.keys().next().value);
}

async function fromServer(name, body, signal) {
  const response = await reach(name, body, signal);
  const answer = await response.json().catch(() => null);
  if (response.ok && answer !== null) return answer;
  signal?.throwIfAborted();
  const message = answer?.error ?? `The server answered ${response.status} to the request "${name}".`;
  throw new AskError(message, {status: response.status, job: answer?.job ?? null});
}

async function reach(name, body, signal) {
  const request = {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body), signal};
  try {
    const response = await fetch(`/api/${name}`, request);
    lost(false);
    return response;
  } catch (error) {
    if (signal?.aborted) throw error;
    lost(true);
    throw new AskError("The server has stopped. Start it again: dualform view RUN");
  }
}

function fromReport(name, body) {
  if (name === "inputs") return listedInReport(body);
  const answer = ANSWERS[keyOf(name, body)];
  if (answer === undefined) throw new AskError(NOT_IN_REPORT, {status: 404});
  return answer;
}

// A report holds one list; its filters are applied here.
function listedInReport(body) {
  const all = ANSWERS[keyOf("inputs", {})]?.inputs ?? [];
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

/** The inputs that a report can predict, as requests name them. */
export function inputsInReport() {
  const keys = Object.keys(ANSWERS).filter((key) => key.startsWith("predict "));
  return keys.map((key) => JSON.parse(key.slice("predict ".length)).input);
}
