"""What the rooms for other libraries share: the device they take, functions replaced in them."""
