"""Looking at stores: pictures, films and curves."""
