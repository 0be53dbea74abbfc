"""What every verb works with: an open record, a device, trials and what their outcomes mean."""
