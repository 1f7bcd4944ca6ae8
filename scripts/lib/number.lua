-- lib/number: read the number at a key.
-- defines  read_number(key): nil if the key is missing; an error if its value is not a number
local function read_number(key)
  local value = redis.call('get', key)
  if value and not tonumber(value) then
    redis.call('incrby', key, 0) -- fails, with Redis's own error
  end
  return value and tonumber(value)
end
