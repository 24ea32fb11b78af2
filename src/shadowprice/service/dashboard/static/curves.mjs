// Lines of [x, y] points whose positions differ from line to line, on one axis.

/** Return the interpolated value of a line at a position; null outside the line. */
export function valueAt(line, x) {
  const after = line.findIndex(([at]) => at >= x);
  if (after < 0 || !line.length || x < line[0][0]) return null;
  if (line[after][0] === x || after === 0) return line[after][1];
  const [x0, y0] = line[after - 1], [x1, y1] = line[after];
  return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

/** Return the reports that measure a job's work. A job of one step, such as a plain command, may report its own steps: they don't. */
export function counted(job, points) {
  return job.required === 1 ? points.filter((point) => !Number.isInteger(point.minibatches)) : points;
}

/** Return the distinct positions of all lines, in order. */
export const positionsOf = (...lines) => [...new Set(lines.flatMap((line) => line.map(([x]) => x)))].sort((a, b) => a - b);
