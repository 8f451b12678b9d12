export default function Approvals() { return null; }
