/* Sections of whole numbers, as report/folded/packed.py writes them: differences, or numbers as they are, in planes of bytes, deflated, base64. */
"use strict";

function bytesOfBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

async function inflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/* The codes 0, 1, 2, 3, … are the numbers 0, -1, 1, -2, …, or the differences of a number from the one before. Numbers
   that have no bytes are all the same. */
function numbersOfPlanes(bytes, at, count, width, wide, differs, same) {
  if (!width) return new (wide ? Float64Array : Int32Array)(count).fill(same);
  if (!wide && width <= 4) return smallNumbers(bytes, at, count, width, differs);
  const numbers = wide ? new Float64Array(count) : new Int32Array(count);
  let number = 0;
  for (let i = 0; i < count; i++) {
    let code = bytes[at + i];
    for (let plane = 1, factor = 256; plane < width; plane++, factor *= 256) code += bytes[at + plane * count + i] * factor;
    number = (differs ? number : 0) + (bytes[at + i] & 1 ? -(code + 1) / 2 : code / 2);
    numbers[i] = number;
  }
  return numbers;
}

/* The same in arithmetic of 32 bits, which takes a fifth of the time: most of what travels in a page. */
function smallNumbers(bytes, at, count, width, differs) {
  const top = at + (width - 1) * count, numbers = new Int32Array(bytes.subarray(top, top + count));
  for (let plane = width - 2; plane >= 0; plane--)
    for (let i = 0, from = at + plane * count; i < count; i++) numbers[i] = numbers[i] << 8 | bytes[from + i];
  for (let i = 0, before = 0; i < count; i++) {
    const code = numbers[i], number = before + (code >>> 1 ^ -(code & 1)) | 0;
    numbers[i] = number;
    before = differs ? number : 0;
  }
  return numbers;
}

/* Each column is worked out when it is first read: many are only for who points at something. */
async function unpacked(section) {
  const bytes = await inflated(bytesOfBase64(section.data)), found = {};
  let next = 0;
  for (const [name, count, width, size, differs, same] of section.columns) {
    const at = next;
    whenRead(found, name, () => numbersOfPlanes(bytes, at, count, width, size > 4, differs, same));
    next += count * width;
  }
  return found;
}

function whenRead(found, name, make) {
  let kept;
  Object.defineProperty(found, name, {get: () => kept ||= make(), set: value => { kept = value; }, enumerable: true});
}

/* Where each row of so many numbers begins, and where the last one ends. */
function offsets(counts) {
  const found = new Int32Array(counts.length + 1);
  for (let i = 0; i < counts.length; i++) found[i + 1] = found[i] + counts[i];
  return found;
}

/* The first index in [low, high) whose value is above a limit; values ascend. */
function firstAbove(values, limit, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle; else low = middle + 1;
  }
  return low;
}
