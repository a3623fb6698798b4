"""Images: files of public sets and folders in, labelled arrays or rows of pixels out."""
