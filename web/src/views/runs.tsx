export default function Runs({ id }: { id: string }) { return <p>{id}</p>; }
