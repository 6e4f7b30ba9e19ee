"""``make demo-transfers``: three queries whose checkpoints agree, killed again and again."""
