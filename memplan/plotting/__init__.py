"""Pictures: how a plan packs its buffers, and how live bytes rise and fall.

Figures are made without pyplot, so plotting opens no window and keeps no state.
"""
