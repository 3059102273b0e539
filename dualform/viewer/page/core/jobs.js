// What the server is preparing: asked for twice a second until everything is done, then never again.
//
//     jobs.subscribe((answer) => ...);         // called at once with the latest answer, if there is one
//     await jobs.done("mute");                 // also begins to ask again, for work that started later
import {ask, inReport} from "viewer/core/ask";

const POLL_MS = 500;
let latest = null;
let timer = null;
const listeners = new Set();
const waiting = new Set();

function finished(name) {
  const named = (latest?.jobs ?? []).filter((job) => name === null || job.name === name);
  return named.every((job) => job.done || job.failed);
}

async function poll() {
  try {
    latest = await ask("jobs");
    for (const listener of [...listeners]) listener(latest);
  } catch {
    // ask has told the page that the server is gone; it is asked again, as it may come back
  }
  for (const wait of [...waiting]) if (latest && finished(wait.name)) settle(wait);
  timer = latest && finished(null) && !waiting.size ? null : setTimeout(poll, latest ? POLL_MS : 4 * POLL_MS);
}

function settle(wait) {
  waiting.delete(wait);
  wait.resolve();
}

export const jobs = {
  latest: () => latest,
  start() {
    if (timer === null) timer = inReport ? (poll(), 0) : setTimeout(poll, 0);
  },
  subscribe(listener) {
    listeners.add(listener);
    if (latest) listener(latest);
    return () => listeners.delete(listener);
  },
  isDone: (name) => inReport || (latest !== null && finished(name)),
  whatIs: (name) => latest?.jobs.find((job) => job.name === name)?.what ?? null,
  /** Resolves when the job of this name is done. A moment passes first, so that nobody asks in a tight circle. */
  done(name) {
    return new Promise((resolve) => {
      setTimeout(() => {
        waiting.add({name, resolve});
        jobs.start();
      }, POLL_MS);
    });
  },
};
