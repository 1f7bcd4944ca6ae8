-- lib/count: the number at a key.
-- defines  count(key): nil when there is none; an error when there is something else
local function count(key)
  local value = redis.call('get', key)
  if value and not tonumber(value) then
    redis.call('incrby', key, 0) -- fails, and says why
  end
  return value and tonumber(value)
end
