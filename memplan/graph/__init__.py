"""Exported graphs: canonical form, aliases, liveness. For chunking and fusing."""
