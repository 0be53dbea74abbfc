"""What two of the recipes share."""
