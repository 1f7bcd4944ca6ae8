-- fairlock/ended: whether an acquisition was given back. A key of its own remembers that.
-- defines  ended(). KEYS[3] is that key
local function ended()
  return redis.call('exists', KEYS[3]) == 1
end
