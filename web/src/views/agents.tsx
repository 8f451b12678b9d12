export default function Agents({ id }: { id: string }) { return <p>{id}</p>; }
