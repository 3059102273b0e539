// The requests of a page, each sent only while its answer is still wanted.
//
//     const pending = new PendingRequests();
//     pending.add({wanted: (now) => ["predict", body] or null, show: (answer) => ..., busy, fail, clear, live: true});
//                                              // all after `show` may be left out
//     pending.update(now);                     // whenever the state changes
//
// Requests go one after another in two lanes, fast and slow, so that a long reading of keys holds up no prediction. An
// answer that is no longer wanted is aborted and never shown. While a pen moves (`drawing`) there is one request in flight
// at all, which is let through, and the newest follows it: a picture that lags a little is better than none until the pen
// rests. Items that are `live` keep up with the pen; the others wait until it rests.
import {ask} from "viewer/core/ask";
import {jobs} from "viewer/core/jobs";
import {keyOf} from "viewer/core/requests";

const REST_MS = 250; // without a movement after which the pen rests
const LANES = ["fast", "slow"];

export class PendingRequests {
  constructor() {
    this.items = [];
    this.last = -1;
    this.running = new Map(); // by lane
    this.closed = false;
    this.movedAt = -Infinity;
    this.restTimer = null;
  }

  add(item) {
    const silent = {busy: () => {}, fail: () => {}, clear: () => {}};
    this.items.push({live: false, lane: "slow", what: "asking …", ...silent, ...item, key: null, open: null});
  }

  update(now, {drawing = false} = {}) {
    if (drawing) this.#moved();
    else this.movedAt = -Infinity;
    for (const item of this.items) this.#want(item, now, drawing);
    this.#next();
  }

  close() {
    this.closed = true;
    clearTimeout(this.restTimer);
    for (const {controller} of this.running.values()) controller.abort();
  }

  #moved() {
    this.movedAt = performance.now();
    clearTimeout(this.restTimer);
    this.restTimer = setTimeout(() => this.#next(), REST_MS + 10);
  }

  #resting() {
    return performance.now() - this.movedAt > REST_MS;
  }

  #want(item, now, drawing) {
    const request = item.wanted(now);
    const key = request && keyOf(...request);
    if (key === item.key) return;
    item.key = key;
    item.open = request;
    const running = this.running.get(item.lane);
    if (running?.item === item && !(drawing && request)) running.controller.abort();
    if (request) item.busy(item.what);
    else item.clear();
  }

  // With a moving pen in turn, so that every live item keeps up; else the first that is open.
  #choose(lanes) {
    const resting = this.#resting(),
      items = this.items,
      after = this.last + 1;
    const order = resting ? items : [...items.slice(after), ...items.slice(0, after)];
    return order.find((item) => item.open && lanes.includes(item.lane) && (resting || item.live));
  }

  #next() {
    if (this.closed || (this.running.size && !this.#resting())) return;
    const item = this.#choose(LANES.filter((lane) => !this.running.has(lane)));
    if (!item) return;
    this.#run(item);
    this.#next();
  }

  async #run(item) {
    const job = item.needs?.(item.open[1]);
    if (job && !jobs.isDone(job)) return this.#wait(item, job, jobs.whatIs(job));
    const {open: request, key, lane} = item,
      controller = new AbortController();
    item.open = null;
    this.last = this.items.indexOf(item);
    this.running.set(lane, {item, controller});
    await this.#answer(item, request, key, controller);
    this.running.delete(lane);
    this.#next();
  }

  async #answer(item, request, key, {signal}) {
    try {
      const answer = await ask(...request, {signal});
      if (!signal.aborted && item.key !== null) item.show(answer, request[1]);
      if (item.key === key) item.busy(null);
    } catch (error) {
      if (!signal.aborted && item.key === key) this.#failed(item, request, key, error);
    }
  }

  #failed(item, request, key, error) {
    if (error.status !== 503 || !error.job) {
      if (!error.name?.startsWith("AskError")) console.error(error);
      item.busy(null);
      item.fail(error.message);
      return;
    }
    item.open = request;
    this.#wait(item, error.job, error.message);
  }

  #wait(item, job, words) {
    const {open: request, key} = item;
    item.open = null;
    item.busy(words ? `Preparing: ${words} …` : "Preparing …");
    return jobs.done(job).then(() => {
      if (this.closed || item.key !== key) return;
      item.open = request;
      this.#next();
    });
  }
}
