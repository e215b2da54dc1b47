"""What the packing keys of other trainers' files mean to a plan, trainer by trainer."""
