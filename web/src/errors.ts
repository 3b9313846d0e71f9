// A mistake of the user or a file, said in a sentence; everything else is a bug.
export class InputError extends Error {}
