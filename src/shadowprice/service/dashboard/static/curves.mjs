// Lines of points at different positions, on one axis.

/** Return the value of a line of [x, y] points between its points; null outside. */
export function valueAt(line, x) {
  const after = line.findIndex(([at]) => at >= x);
  if (after < 0 || !line.length || x < line[0][0]) return null;
  if (line[after][0] === x || after === 0) return line[after][1];
  const [x0, y0] = line[after - 1], [x1, y1] = line[after];
  return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

/** Return the reports that count: a job of one step, such as a plain command, counts by time whatever steps its script has. */
export function counted(job, points) {
  return job.required === 1 ? points.filter((point) => !Number.isInteger(point.minibatches)) : points;
}

/** Return the positions of all lines, in order. */
export const positionsOf = (...lines) => [...new Set(lines.flatMap((line) => line.map(([x]) => x)))].sort((a, b) => a - b);
