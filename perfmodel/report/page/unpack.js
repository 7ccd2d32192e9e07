// Packed columns back into typed arrays; see perfmodel/report/packing.py.

const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };

export async function unpack(column) {
  const stream = new Blob([bytesOf(column.data)]).stream().pipeThrough(new DecompressionStream("deflate"));
  const places = new Uint8Array(await new Response(stream).arrayBuffer());
  const Kind = TYPES[column.type];
  const size = Kind.BYTES_PER_ELEMENT;
  if (size === 1) return places;
  const { count } = column;
  if (column.type === "u2") {
    const words = new Uint16Array(count);
    for (let row = 0; row < count; row += 1) words[row] = places[row] | (places[count + row] << 8);
    return words;
  }
  const mixed = new Uint8Array(count * size);
  for (let place = 0; place < size; place += 1) {
    const from = place * count;
    for (let row = 0, to = place; row < count; row += 1, to += size) mixed[to] = places[from + row];
  }
  return new Kind(mixed.buffer);
}

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

// The number that each level stands for: none, zero, then from low to high.
export function levelValues(column) {
  const { low, high, bits, scale } = column;
  const steps = 2 ** bits - 3;
  const values = new Float64Array(2 ** bits);
  values[0] = NaN;
  for (let step = 0; step <= steps; step += 1) {
    const share = step / steps;
    values[step + 2] = scale === "log" ? low * (high / low) ** share : low + (high - low) * share;
  }
  return values;
}
