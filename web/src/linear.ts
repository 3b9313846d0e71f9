// Small dense linear algebra in double precision.

export class Matrix {
  constructor(readonly rows: number, readonly cols: number, readonly data = new Float64Array(rows * cols)) {}

  static of(list: ArrayLike<number>[], cols = list[0]?.length ?? 0): Matrix {
    const made = new Matrix(list.length, cols);
    list.forEach((row, i) => made.data.set(row as ArrayLike<number>, i * cols));
    return made;
  }
  row(i: number): Float64Array { return this.data.subarray(i * this.cols, (i + 1) * this.cols); }
  get list(): Float64Array[] { return Array.from({ length: this.rows }, (_, i) => this.row(i)); }
  get(i: number, j: number): number { return this.data[i * this.cols + j]; }
  set(i: number, j: number, value: number): void { this.data[i * this.cols + j] = value; }
  map(change: (value: number, i: number, j: number) => number): Matrix {
    const made = new Matrix(this.rows, this.cols);
    for (let i = 0; i < this.rows; i++) for (let j = 0; j < this.cols; j++) made.set(i, j, change(this.get(i, j), i, j));
    return made;
  }
}

export function dot(a: Float64Array, b: Float64Array): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

export const norm = (a: Float64Array) => Math.sqrt(dot(a, a));

// a @ b.T
export function timesTransposed(a: Matrix, b: Matrix): Matrix {
  const made = new Matrix(a.rows, b.rows);
  for (let i = 0; i < a.rows; i++) {
    const row = a.row(i);
    for (let j = 0; j < b.rows; j++) made.set(i, j, dot(row, b.row(j)));
  }
  return made;
}

// a @ b
export function times(a: Matrix, b: Matrix): Matrix {
  const made = new Matrix(a.rows, b.cols);
  for (let i = 0; i < a.rows; i++) {
    const out = made.row(i);
    for (let k = 0; k < a.cols; k++) {
      const value = a.get(i, k), row = b.row(k);
      if (value !== 0) for (let j = 0; j < out.length; j++) out[j] += value * row[j];
    }
  }
  return made;
}

export function transposed(a: Matrix): Matrix {
  const made = new Matrix(a.cols, a.rows);
  for (let i = 0; i < a.rows; i++) for (let j = 0; j < a.cols; j++) made.set(j, i, a.get(i, j));
  return made;
}

// The solution x (n, m) of a x = b for a symmetric positive definite a (n, n), by Cholesky's factors.
export function solve(a: Matrix, b: Matrix): Matrix {
  const n = a.rows, lower = new Matrix(n, n);
  for (let i = 0; i < n; i++) {
    const mine = lower.row(i);
    for (let j = 0; j <= i; j++) {
      const other = lower.row(j);
      let sum = a.get(i, j);
      for (let k = 0; k < j; k++) sum -= mine[k] * other[k];
      if (i === j) {
        if (!(sum > 0)) throw new RangeError("numbers out of all range");
        mine[i] = Math.sqrt(sum);
      } else mine[j] = sum / other[j];
    }
  }
  const x = new Matrix(n, b.cols, b.data.slice());
  for (let i = 0; i < n; i++) {
    const out = x.row(i), factors = lower.row(i);
    for (let k = 0; k < i; k++) subtract(out, x.row(k), factors[k]);
    scale(out, 1 / factors[i]);
  }
  for (let i = n - 1; i >= 0; i--) {
    const out = x.row(i);
    for (let k = i + 1; k < n; k++) subtract(out, x.row(k), lower.get(k, i));
    scale(out, 1 / lower.get(i, i));
  }
  return x;
}

function subtract(out: Float64Array, row: Float64Array, factor: number): void {
  if (factor !== 0) for (let j = 0; j < out.length; j++) out[j] -= factor * row[j];
}
function scale(out: Float64Array, factor: number): void {
  for (let j = 0; j < out.length; j++) out[j] *= factor;
}

export const identity = (n: number) => new Matrix(n, n).map((_, i, j) => (i === j ? 1 : 0));

export function argsort(values: ArrayLike<number>): number[] {
  return Array.from({ length: values.length }, (_, i) => i).sort((a, b) => values[a] - values[b] || a - b);
}
