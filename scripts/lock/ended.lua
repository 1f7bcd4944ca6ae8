-- lock/ended: whether an acquisition has been given back. Its place is in a set then.
-- KEYS[3]  given back: set of places
-- defines  ended(place)
local function ended(place)
  return redis.call('sismember', KEYS[3], place) == 1
end
