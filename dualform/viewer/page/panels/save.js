// Saving what a panel shows: figures that stand on their own, and numbers.
//
//   await savePicture(body, "Attention per class", "totals", "png");
//   saveText("totals.csv", csv(rows), "text/csv");
import {el} from "viewer/core/dom";
import {figure} from "viewer/panels/figure";

const SCALE = 2; // pixels of a PNG for each of the page's

/** Downloads text as a file. */
export function saveText(name, text, type) {
  saveBlob(name, new Blob([text], {type: `${type};charset=utf-8`}));
}

function saveBlob(name, blob) {
  const href = URL.createObjectURL(blob),
    anchor = el("a", {href, download: name, hidden: true});
  document.body.append(anchor);
  anchor.click();
  anchor.remove();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

/** Saves the contents of `body` as "svg" or "png". */
export async function savePicture(body, title, name, format) {
  const {text, width, height} = figure(body, title);
  if (format === "svg") saveText(`${name}.svg`, text, "image/svg+xml");
  else saveBlob(`${name}.png`, await png(text, width, height));
}

async function png(text, width, height) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = el("canvas", {width: Math.ceil(width * SCALE), height: Math.ceil(height * SCALE)});
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  if (!blob) throw new Error("the picture is too large for this browser; save it as SVG");
  return blob;
}

export const json = (data) => `${JSON.stringify(data, null, 2)}\n`;

/** Rows as CSV: a list of objects or of lists, an object of columns, or an object of single values. */
export function csv(data) {
  const [head, rows] = table(data);
  return [head, ...rows]
    .filter(Boolean)
    .map((row) => `${row.map(cell).join(",")}\r\n`)
    .join("");
}

function table(data) {
  if (Array.isArray(data)) {
    if (data.every(Array.isArray)) return [null, data];
    if (!data.some((row) => row !== null && typeof row === "object")) return [["value"], data.map((value) => [value])];
    const head = [...new Set(data.flatMap((row) => Object.keys(row ?? {})))];
    return [head, data.map((row) => head.map((key) => row?.[key]))];
  }
  const entries = Object.entries(data ?? {}),
    long = entries[0]?.[1]?.length;
  if (entries.length && entries.every(([, column]) => Array.isArray(column) && column.length === long)) {
    return [entries.map(([key]) => key), Array.from({length: long}, (_, i) => entries.map(([, column]) => column[i]))];
  }
  return [["name", "value"], entries];
}

function cell(value) {
  const text =
    value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
