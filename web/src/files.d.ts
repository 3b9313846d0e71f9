declare module "*?packed" {
  const address: string; // of the file, compressed by gzip
  export default address;
}
