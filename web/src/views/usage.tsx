export default function Usage() { return null; }
