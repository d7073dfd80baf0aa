"""What a nest costs on a machine: one rule for one nest, one for many at once."""
